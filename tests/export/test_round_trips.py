"""From a published GGUF file through training to every export, each read back."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.corpus import corpus
from support.exports import export
from support.llama_cpp import next_logprobs, require_llama_cpp, tokens
from support.runs import dataset_ref, make_run
from support.tiny import chat_rows

from slidepack.engine.contract.job import EvalSpec, JobSpec, LoraMethod, ModelRef, OptimSpec
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.export.adapter import read_adapter
from slidepack.engine.export.contract import ExportResult
from slidepack.engine.export.reference import trainer_logits
from slidepack.engine.importer.fingerprint import content_hash
from slidepack.engine.model.loading import Shards
from slidepack.engine.shape import read_shape

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def trained(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few real training steps on the demo's model; the result folder."""
    root = tmp_path_factory.mktemp("trained")
    spec = JobSpec(
        name="a few steps",
        base=ModelRef(
            model_id="smollm2",
            path=str(smollm2_folder),
            content_hash=content_hash(smollm2_folder),
        ),
        dataset=dataset_ref(root, chat_rows(40)),
        method=LoraMethod(rank=8, alpha=16),
        optim=OptimSpec(lr=1e-3, schedule="constant", warmup_fraction=0.0),
        batch_size=4,
        max_seq_len=128,
        steps=6,
        eval=EvalSpec(selection_fraction=0.1, max_rows=2, sample_tokens=4),
    )
    folder = make_run(root / "run", spec)
    done = subprocess.run(
        [sys.executable, "-m", "slidepack.engine.worker", str(folder.root)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder.result


def _export(trained: Path, base: Path, target: Path, kind: Any, **changes: Any) -> ExportResult:
    done = export(trained, base, target, kind, base_hash=content_hash(base), **changes)
    found = done.verification
    assert found is not None and found.holds
    figures = msgspec.to_builtins(found)
    sys.stdout.write(f"{kind} {changes}: {json.dumps(figures)}\n")
    assert found.learned == pytest.approx(1.0, abs=0.2)
    return done


@pytest.fixture(scope="module")
def files(
    trained: Path, smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """GGUF files of the result, by how they store matrices."""
    root = tmp_path_factory.mktemp("files")
    for quant in ("f16", "q8_0"):
        _export(trained, smollm2_folder, root / quant, "gguf", quant=quant)
    return {quant: next((root / quant).iterdir()) for quant in ("f16", "q8_0")}


@pytest.mark.parametrize(
    ("kind", "changes", "loader", "agreement"),
    [
        ("peft", {}, "peft", 1.0),
        ("merged", {}, "transformers", 1.0),
        ("gguf", {"quant": "f16"}, "gguf and transformers", 0.98),
        ("gguf", {"quant": "q8_0"}, "gguf and transformers", 0.9),
        ("gguf", {"adapter_only": True}, "gguf and transformers", 1.0),
    ],
)
def test_each_export_computes_what_was_trained(
    trained: Path,
    smollm2_folder: Path,
    tmp_path: Path,
    kind: str,
    changes: dict[str, Any],
    loader: str,
    agreement: float,
) -> None:
    done = _export(trained, smollm2_folder, tmp_path / "out", kind, **changes)
    assert done.verification is not None
    assert done.verification.loader == loader
    assert done.verification.top1_agreement >= agreement
    assert done.verification.effect is not None and done.verification.effect > 0.01


def test_the_exported_file_is_imported_with_the_same_tokens_and_weights(
    trained: Path, smollm2_folder: Path, tmp_path: Path, files: dict[str, Path]
) -> None:
    request = {
        "kind": "gguf",
        "source": str(files["f16"]),
        "target": str(tmp_path / "again"),
        "progress": str(tmp_path / "progress"),
    }
    (tmp_path / "request.json").write_text(json.dumps(request))
    command = [sys.executable, "-m", "slidepack.engine.importer", str(tmp_path / "request.json")]
    subprocess.run(command, check=True)
    again = tmp_path / "again"
    before, after = load_tokenizer(smollm2_folder), load_tokenizer(again)
    different = [text for text in corpus() if before.encode(text) != after.encode(text)]
    assert not different, f"{len(different)} lines"
    assert after.template_source == before.template_source

    shape = read_shape(smollm2_folder)
    adapter = read_adapter(trained / "adapter", shape)
    ids = before.encode("The capital of France is")
    wanted = trainer_logits(Shards(smollm2_folder), shape, adapter, [ids])
    found = trainer_logits(Shards(again), read_shape(again), None, [ids])
    assert torch.equal(found.argmax(dim=-1), wanted.argmax(dim=-1))
    assert float((found - wanted).abs().mean()) < 0.005 * float(wanted.std())


@pytest.mark.parametrize("quant", ["f16", "q8_0"])
def test_llama_cpp_runs_the_exported_file(
    trained: Path, smollm2_folder: Path, files: dict[str, Path], quant: str
) -> None:
    require_llama_cpp()
    path = files[quant]
    tokenizer = load_tokenizer(smollm2_folder)
    shape = read_shape(smollm2_folder)
    adapter = read_adapter(trained / "adapter", shape)
    ids = tokenizer.encode("The capital of France is")
    wanted = trainer_logits(Shards(smollm2_folder), shape, adapter, [ids])[-1].softmax(-1)
    found = next_logprobs(path, ids)
    best = int(wanted.argmax())
    assert max(found, key=lambda index: found[index]) == best
    theirs = torch.tensor([found[index] for index in range(shape.vocab)]).exp()
    assert float((theirs - wanted).abs().sum()) < (0.02 if quant == "f16" else 0.1)
    # It ends a text at NUL.
    lines = [line for line in corpus(500) if "\x00" not in line]
    assert tokens(path, lines, start=True) == [tokenizer.encode(line) for line in lines]
