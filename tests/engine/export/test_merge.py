"""Merged models: `transformers` finds in them what PEFT finds in base and adapter."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.exports import export, random_adapter, save_exportable, save_merging_tokenizer
from support.families import FAMILY_NAMES, tiny_family
from transformers import AutoModelForCausalLM, AutoTokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.export.merge import MergedWeights
from slidepack.engine.importer.folder import check_folder
from slidepack.engine.shape import read_shape

IDS = torch.tensor([[5, 80, 211, 7, 7, 30, 12, 45, 99, 3]])
METHODS = {
    "all": LoraMethod(rank=3, alpha=5),
    "rslora": LoraMethod(rank=4, alpha=7, rslora=True),
    "two-targets": LoraMethod(rank=2, alpha=1, targets=("v_proj", "down_proj")),
}


def _family(folder: Path, name: str, dtype: torch.dtype = torch.float32) -> Path:
    tiny_family(folder, name, dtype=dtype)
    save_merging_tokenizer(folder)
    return folder


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    values: torch.Tensor = model.eval()(IDS).logits
    return values


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_merged_equals_peft(tmp_path: Path, name: str, method: str) -> None:
    base = _family(tmp_path / "base", name)
    result = random_adapter(base, tmp_path / "result", METHODS[method])
    done = export(result, base, tmp_path / "out", "merged")
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    bare = _logits(plain)
    judge = _logits(peft.PeftModel.from_pretrained(plain, result / "adapter"))
    merged = _logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto"))
    assert float((judge - bare).abs().max()) > 0.1
    # Sums in another order, over logits of a few units.
    torch.testing.assert_close(merged, judge, rtol=1e-5, atol=3e-5)
    found = done.verification
    assert found is not None and found.loader == "transformers" and found.top1_agreement == 1.0
    assert found.learned == pytest.approx(1.0, abs=1e-4)


def test_the_folder_is_a_whole_model(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "qwen3")
    result = random_adapter(base, tmp_path / "result")
    done = export(result, base, tmp_path / "out", "merged", verify=False)
    assert check_folder(tmp_path / "out").shape == read_shape(base)
    assert {"config.json", "generation_config.json", "tokenizer.json"} <= set(done.files)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (base / name).read_bytes()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert done.verification is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_weights_are_merged_in_fp32_and_rounded_once(tmp_path: Path, dtype: torch.dtype) -> None:
    base = save_exportable(tmp_path / "base", "llama", dtype=dtype)
    method = LoraMethod(rank=3, alpha=5)
    result = random_adapter(base, tmp_path / "result", method)
    done = export(result, base, tmp_path / "out", "merged")
    before = load_file(base / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    adapter = load_file(result / "adapter" / "adapter_model.safetensors")
    assert set(after) == set(before)
    changed = 0
    for name, weight in before.items():
        assert after[name].dtype == dtype
        module = f"base_model.model.{name.removesuffix('.weight')}"
        expected = weight
        if f"{module}.lora_A.weight" in adapter:
            product = adapter[f"{module}.lora_B.weight"] @ adapter[f"{module}.lora_A.weight"]
            expected = weight.double() + method.scale * product.double()
            # Rounded once, it is the nearest number of the dtype, but where fp32 ties.
            changed += 1
            wrong = after[name] != expected.to(dtype)
            assert float(wrong.float().mean()) < 1e-3
            expected = torch.where(wrong, after[name], expected.to(dtype))
        assert torch.equal(after[name], expected.to(dtype))
    assert changed == 21
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == str(dtype)[6:]
    assert done.verification is not None
    assert 0 < done.verification.mean_abs <= done.verification.mean_bound


def test_pieces_of_any_size_make_the_same_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    result = random_adapter(base, tmp_path / "result")
    export(result, base, tmp_path / "whole", "merged", verify=False)
    monkeypatch.setattr("slidepack.engine.export.merge._PIECE_ELEMENTS", 700)
    pieces = list(MergedWeights(base, read_shape(base), None).rows("model.embed_tokens.weight"))
    assert len(pieces) > 20
    export(result, base, tmp_path / "parts", "merged", verify=False)
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    parts = load_file(tmp_path / "parts" / "model.safetensors")
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-6, atol=1e-7)


def test_a_template_that_stood_in_goes_with_the_model(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    config = json.loads((base / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    result = random_adapter(base, tmp_path / "result")
    template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|pad|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    (result / "adapter" / "chat_template.jinja").write_text(template)
    export(result, base, tmp_path / "out", "merged", verify=False)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == template
    ends = json.loads((tmp_path / "out" / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [1, 2]


def test_what_was_trained_as_a_whole_is_copied(tmp_path: Path) -> None:
    model = save_exportable(tmp_path / "result" / "model", "gemma3", dtype=torch.bfloat16)
    done = export(tmp_path / "result", tmp_path / "none", tmp_path / "out", "merged")
    for path in model.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    assert done.verification is not None and done.verification.learned is None
    assert done.verification.max_abs < 1e-3


def test_the_adapter_is_copied_as_it_is(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    result = random_adapter(base, tmp_path / "result")
    (tmp_path / "out").mkdir()
    done = export(result, base, tmp_path / "out", "peft")
    for path in (result / "adapter").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    found = done.verification
    assert found is not None and (found.loader, found.prompts) == ("peft", 5)


@pytest.mark.parametrize("kind", ["peft", "lora"])
def test_a_whole_model_has_no_adapter(tmp_path: Path, kind: str) -> None:
    save_exportable(tmp_path / "result" / "model", "llama")
    with pytest.raises(SlidepackError) as caught:
        export(
            tmp_path / "result",
            tmp_path / "none",
            tmp_path / "out",
            "gguf" if kind == "lora" else "peft",
            adapter_only=kind == "lora",
        )
    assert caught.value.report.code == "RUN-NO-RESULT"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["result"]


@pytest.mark.parametrize("fault", ["missing", "shape", "nan", "garbled", "dora", "no-weights"])
def test_a_broken_adapter_is_refused(tmp_path: Path, fault: str) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    result = random_adapter(base, tmp_path / "result")
    weights = result / "adapter" / "adapter_model.safetensors"
    config = result / "adapter" / "adapter_config.json"
    if fault in ("missing", "shape", "nan"):
        tensors = load_file(weights)
        name = next(iter(tensors))
        if fault == "missing":
            del tensors[name]
        elif fault == "shape":
            tensors[name] = tensors[name][:, :-1].contiguous()
        else:
            tensors[name][0, 0] = float("nan")
        save_file(tensors, weights)
    elif fault == "garbled":
        config.write_text("{")
    elif fault == "dora":
        config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))
    else:
        weights.write_bytes(b"half")
    with pytest.raises(SlidepackError) as caught:
        export(result, base, tmp_path / "out", "merged")
    assert caught.value.report.code == "RUN-FOLDER-BROKEN"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "result"]


def test_another_base_than_the_one_trained_on_is_refused(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    result = random_adapter(base, tmp_path / "result")
    with pytest.raises(SlidepackError) as caught:
        export(result, base, tmp_path / "out", "merged", base_hash="0" * 64)
    assert caught.value.report.code == "MODEL-CHANGED"
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SlidepackError) as caught:
        export(tmp_path, tmp_path, tmp_path / "out", "merged")
    assert caught.value.report.code == "RUN-NO-RESULT"
