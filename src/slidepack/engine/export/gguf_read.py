"""Reads a written GGUF file back: its tensors in Hugging Face's order and names, its header."""

from pathlib import Path

import numpy as np
import torch
from gguf import dequantize
from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.export.adapter import Adapter, LowRank
from slidepack.engine.export.gguf_family import gguf_family
from slidepack.engine.export.gguf_rows import unpermuted
from slidepack.engine.families.gguf_table import stores_permuted, stores_plus_one, tensor_name
from slidepack.engine.importer.gguf_file import GgufFile, broken
from slidepack.engine.shape import ModelShape

__all__ = ["GgufTensors", "read_gguf_lora"]


class GgufTensors:
    """The tensors of a GGUF file, dequantised by the `gguf` package."""

    def __init__(self, path: Path, shape: ModelShape) -> None:
        """Open the file.

        Args:
            path: of the file.
            shape: of the model that it should hold.

        Raises:
            SlidepackError: MODEL-BROKEN.
        """
        self._file = GgufFile(path)
        self._shape = shape
        self._family = gguf_family(shape)

    def read(self, name: str, size: tuple[int, ...]) -> Tensor:
        """Return a tensor in fp32, as Hugging Face stores it.

        Raises:
            SlidepackError: MODEL-BROKEN.
        """
        value = _values(self._file, tensor_name(name, self._shape), size)
        if stores_permuted(name, self._family):
            return unpermuted(value, self._shape.head_dim)
        return value - 1.0 if stores_plus_one(name, self._shape) else value


def read_gguf_lora(path: Path, shape: ModelShape, method: LoraMethod) -> Adapter:
    """Read a GGUF LoRA back.

    Args:
        path: of the file.
        shape: of its base.
        method: with which it was trained; the file says no more than alpha.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    file = GgufFile(path)
    family = gguf_family(shape)
    alpha = file.number("adapter.lora.alpha")
    if file.text("adapter.type") != "lora" or alpha is None:
        raise broken(path, "it is no LoRA")
    pairs: dict[str, LowRank] = {}
    for layer in range(shape.num_layers):
        for name in shape.layer_tensor_shapes():
            whole = f"model.layers.{layer}.{name}"
            out = f"{tensor_name(whole, shape)}.lora_b"
            if out not in file.tensors:
                continue
            rows, width = shape.layer_tensor_shapes()[name]
            a = _values(file, f"{tensor_name(whole, shape)}.lora_a", (method.rank, width))
            b = _values(file, out, (rows, method.rank))
            b = unpermuted(b, shape.head_dim) if stores_permuted(whole, family) else b
            # As llama.cpp scales it; the trainer's own scale is divided out again.
            pairs[whole] = LowRank(a, b * (alpha / method.rank / method.scale))
    return Adapter(method, pairs)


def _values(file: GgufFile, name: str, size: tuple[int, ...]) -> Tensor:
    found = file.tensors.get(name)
    if found is None:
        raise broken(file.path, f"it has no {name}")
    sizes = tuple(int(count) for count in reversed(found.shape))
    if sizes != size:
        raise broken(file.path, f"{name} is {sizes}, not {size}")
    try:
        values = dequantize(found.data, found.tensor_type)
    except NotImplementedError as error:
        raise SlidepackError(
            "MODEL-BROKEN",
            "The GGUF file cannot be read back.",
            why=f"{name} is stored as {found.tensor_type.name}",
            fix="Run the export again.",
        ) from error
    # A copy: the file is mapped for reading.
    return torch.from_numpy(np.array(values, dtype=np.float32)).view(size)
