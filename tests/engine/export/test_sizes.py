"""What an export is said to take, without torch, against what it takes and what the engine says."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.exports import EXPORTABLE, export, exportable_config, random_adapter, save_exportable

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export import gguf_model
from slidepack.engine.export.contract import ExportFormat, Quant
from slidepack.engine.export.sizes import export_bytes, gguf_bytes
from slidepack.engine.shape import shape_from_config


@pytest.mark.parametrize("quant", ["f16", "q8_0"])
@pytest.mark.parametrize("name", EXPORTABLE)
def test_a_gguf_file_is_as_large_as_the_writer_says(name: str, quant: Quant) -> None:
    config = exportable_config(name).to_dict()
    config["architectures"] = [type(exportable_config(name)).__name__.replace("Text", "")]
    config["architectures"][0] = config["architectures"][0].replace("Config", "ForCausalLM")
    shape = shape_from_config(config, Path(name))
    assert gguf_bytes(shape, quant) == gguf_model.gguf_bytes(shape, quant)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_form_is_larger_than_was_said_nor_much_smaller(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    base = save_exportable(tmp_path / "base", "llama", dtype=dtype)
    result = random_adapter(base, tmp_path / "result")
    forms: list[tuple[ExportFormat, Quant, bool]] = [
        ("peft", "f16", False),
        ("merged", "f16", False),
        ("gguf", "f16", False),
        ("gguf", "q8_0", False),
        ("ollama", "q8_0", False),
        ("gguf", "f16", True),
    ]
    for number, (kind, quant, adapter_only) in enumerate(forms):
        said = export_bytes(result, base, kind, quant, adapter_only=adapter_only)
        target = tmp_path / f"out-{number}"
        done = export(
            *(result, base, target, kind), quant=quant, adapter_only=adapter_only, verify=False
        )
        took = sum(done.files.values())
        assert took <= said <= 2.2 * took, (kind, quant, adapter_only)


def test_a_model_that_was_trained_as_a_whole(tmp_path: Path) -> None:
    result = tmp_path / "result"
    save_exportable(result / "model", "llama")
    files = sum(path.stat().st_size for path in (result / "model").iterdir())
    assert export_bytes(result, None, "merged") == files
    assert export_bytes(result, None, "gguf", "q8_0") < export_bytes(result, None, "gguf")
    for adapter_only in (False, True):
        kind: ExportFormat = "gguf" if adapter_only else "peft"
        with pytest.raises(SlidepackError) as refused:
            export_bytes(result, None, kind, adapter_only=adapter_only)
        assert refused.value.report.code == "RUN-NO-RESULT"


def test_what_cannot_be_said_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SlidepackError) as refused:
        export_bytes(tmp_path, None, "merged")
    assert refused.value.report.code == "RUN-NO-RESULT"
    base = save_exportable(tmp_path / "base", "llama")
    result = random_adapter(base, tmp_path / "result")
    (base / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(SlidepackError) as broken:
        export_bytes(result, base, "merged")
    assert broken.value.report.code == "MODEL-BROKEN"
    gone = tmp_path / "gone"
    with pytest.raises(SlidepackError) as missing:
        export_bytes(result, gone, "gguf")
    assert missing.value.report.code == "MODEL-NOT-FOUND"


def test_it_needs_no_torch() -> None:
    code = (
        "import sys, slidepack.engine.export.sizes; "
        "print([name for name in ('torch', 'numpy', 'gguf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
