"""The check: exports that compute something else are found, whatever is wrong with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.exports import export, random_adapter, save_exportable

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.run import ExportDiffersError
from slidepack.engine.export.verify import BOUNDS, compare


def _result(tmp_path: Path, name: str = "llama") -> tuple[Path, Path]:
    base = save_exportable(tmp_path / "base", name)
    return random_adapter(base, tmp_path / "result"), base


def _as_they_are(rows: torch.Tensor, _head_dim: int) -> torch.Tensor:
    return rows


FAULTS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "rows in the wrong order": (
        "gguf",
        "slidepack.engine.export.gguf_model.permuted",
        _as_they_are,
    ),
    "rows of the adapter in the wrong order": (
        "lora",
        "slidepack.engine.export.gguf_lora.permuted",
        _as_they_are,
    ),
    "another scale": (
        "lora",
        "slidepack.engine.export.gguf_lora._alpha",
        lambda adapter: float(adapter.method.alpha) * 2,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_writer_is_found(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, base = _result(tmp_path)
    kind, where, wrong = FAULTS[fault]
    monkeypatch.setattr(where, wrong)
    with pytest.raises(ExportDiffersError) as caught:
        export(result, base, tmp_path / "out", "gguf", adapter_only=kind == "lora")
    error, found = caught.value.error, caught.value.found
    assert error.report.code == "RUN-EXPORT-DIFFERS" and not found.holds
    assert f"{found.max_abs:.3g}" in error.report.why
    # It is kept to be looked at, under a name that says so.
    assert not (tmp_path / "out").exists()
    assert str(tmp_path / "out.differs-1") in error.report.fix
    assert list((tmp_path / "out.differs-1").iterdir())


@pytest.mark.parametrize(("quant", "part"), [("f16", 0.006), ("q8_0", 0.1)])
def test_a_lost_adapter_is_found_where_rounding_moves_as_much(
    tmp_path: Path, quant: str, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What training changed is within the bounds of rounding; its direction shows all the same."""
    result, base = _result(tmp_path)
    _shrink(result / "adapter" / "adapter_model.safetensors", part)
    whole = export(result, base, tmp_path / "whole", "gguf", quant=quant).verification
    assert whole is not None and whole.learned == pytest.approx(1.0, abs=0.2)
    monkeypatch.setattr("slidepack.engine.export.merge.MergedWeights.rows", _rows_without_adapter)
    with pytest.raises(ExportDiffersError) as caught:
        export(result, base, tmp_path / "out", "gguf", quant=quant)
    found = caught.value.found
    assert found.max_abs <= found.max_bound and found.mean_abs <= found.mean_bound
    assert found.learned is not None and abs(found.learned) < 0.3
    assert "of what was learned" in caught.value.error.report.why


def _rows_without_adapter(self: Any, name: str) -> Any:
    yield self._shards.read(name, self._sizes[name]).float()


def test_the_figures() -> None:
    trainer = torch.tensor([[0.0, 2.0], [4.0, 0.0]])
    export_logits = torch.tensor([[0.0, 2.5], [1.0, 3.0]])
    bare = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    found = compare(trainer, export_logits, bound="fp16", loader="x", prompts=1, bare=bare)
    assert (found.max_abs, found.mean_abs, found.top1_agreement) == (3.0, 6.5 / 4, 0.5)
    assert found.positions == 2 and found.spread == pytest.approx(float(trainer.std()))
    most, mean = BOUNDS["fp16"]
    assert found.max_bound == pytest.approx(most * found.spread)
    assert found.mean_bound == pytest.approx(mean * found.spread)
    # The step to the trainer is (0, 2; 0, 0), the export made 2.5 of its 2.
    assert found.learned == pytest.approx(1.25) and found.effect == 0.5


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_does_not_hold(wrong: float) -> None:
    trainer = torch.tensor([[0.0, 2.0]])
    found = compare(
        trainer, torch.tensor([[0.0, wrong]]), bound="q8_0", loader="x", prompts=1, bare=None
    )
    assert not found.holds


def test_an_adapter_that_changes_nothing_has_no_share() -> None:
    trainer = torch.tensor([[0.0, 2.0]])
    found = compare(trainer, trainer, bound="exact", loader="x", prompts=1, bare=trainer)
    assert found.learned is None and found.holds


@pytest.mark.parametrize("kind", ["peft", "merged", "gguf", "lora"])
@pytest.mark.parametrize("why", ["not installed", "memory"])
def test_our_own_loader_stands_in_and_says_so(
    tmp_path: Path, kind: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, base = _result(tmp_path, "gemma2")
    if why == "memory":
        monkeypatch.setattr("slidepack.engine.export.readback._FOLDER_BYTES", 1 << 50)
        monkeypatch.setattr("slidepack.engine.export.readback._GGUF_BYTES", 1 << 50)
    else:
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    only = kind == "lora"
    done = export(result, base, tmp_path / "out", "gguf" if only else kind, adapter_only=only)
    found = done.verification
    assert found is not None and found.holds
    assert found.loader.startswith("Slidepack's own loader (transformers ")
    assert why in found.loader


def test_rounding_that_hides_what_was_learned_is_said(tmp_path: Path) -> None:
    result, base = _result(tmp_path)
    _shrink(result / "adapter" / "adapter_model.safetensors", 0.03)
    done = export(result, base, tmp_path / "out", "gguf", quant="q8_0")
    assert any("much of what was learned is lost" in note for note in done.notes)


def _shrink(path: Path, part: float) -> None:
    tensors = load_file(path)
    save_file({k: v * (part if "lora_B" in k else 1.0) for k, v in tensors.items()}, path)


def test_an_adapter_for_another_base_is_refused(tmp_path: Path) -> None:
    result, _ = _result(tmp_path)
    other = save_exportable(tmp_path / "other", "llama3")
    with pytest.raises(SlidepackError) as caught:
        export(result, other, tmp_path / "out", "merged")
    assert caught.value.report.code == "RUN-FOLDER-BROKEN"
