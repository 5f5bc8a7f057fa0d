"""Adapters as GGUF LoRAs: added to the base's GGUF they make the merged one."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from support.exports import EXPORTABLE, export, random_adapter, save_exportable

from slidepack.engine.contract.job import LoraMethod

METHODS = {
    "plain": LoraMethod(rank=4, alpha=6),
    "rslora": LoraMethod(rank=4, alpha=6, rslora=True),
    "one-target": LoraMethod(rank=2, alpha=3, targets=("k_proj",)),
}


def _tensors(path: Path) -> dict[str, np.ndarray]:
    reader = gguf.GGUFReader(path)
    return {t.name: gguf.dequantize(t.data, t.tensor_type) for t in reader.tensors}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_it_adds_what_merging_adds(tmp_path: Path, name: str, method: str) -> None:
    base = save_exportable(tmp_path / "base", name)
    result = random_adapter(base, tmp_path / "result", METHODS[method])
    done = export(result, base, tmp_path / "lora", "gguf", adapter_only=True, name="x")
    assert list(done.files) == ["x-lora.gguf"]
    found = done.verification
    assert found is not None and found.holds and found.max_abs < 1e-3
    export(result, base, tmp_path / "whole", "gguf", verify=False)
    save_exportable(tmp_path / "bare" / "model", name)
    export(tmp_path / "bare", base, tmp_path / "without", "gguf", verify=False)

    path = tmp_path / "lora" / "x-lora.gguf"
    fields = {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}
    assert fields["general.type"] == "adapter" and fields["adapter.type"] == "lora"
    assert fields["general.architecture"] == name
    pairs = _tensors(path)
    whole = _tensors(tmp_path / "whole" / "model-f16.gguf")
    bare = _tensors(tmp_path / "without" / "model-f16.gguf")
    changed = set()
    for key, value in whole.items():
        expected = bare[key].astype(np.float32)
        if f"{key}.lora_a" in pairs:
            a, b = pairs[f"{key}.lora_a"], pairs[f"{key}.lora_b"]
            # As llama.cpp does: alpha over the rank, which it takes from the shapes.
            expected = expected + fields["adapter.lora.alpha"] / a.shape[0] * (b @ a)
            changed.add(key)
        # Both were rounded to F16, values below 2.
        np.testing.assert_allclose(value, expected, atol=2**-10)
    layers = 3 if name == "llama" else 7
    assert len(changed) == layers * len(METHODS[method].targets)


@pytest.mark.parametrize("name", EXPORTABLE)
def test_every_family_is_verified(tmp_path: Path, name: str) -> None:
    base = save_exportable(tmp_path / "base", name)
    result = random_adapter(base, tmp_path / "result")
    found = export(result, base, tmp_path / "out", "gguf", adapter_only=True).verification
    assert found is not None and found.loader == "gguf and transformers"
    assert found.learned == pytest.approx(1.0, abs=1e-4)
