"""Writes an adapter as a GGUF LoRA, which llama.cpp adds to the base while it runs."""

from contextlib import closing
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFWriter
from torch import Tensor

from slidepack.engine.export.adapter import Adapter
from slidepack.engine.export.gguf_family import gguf_family
from slidepack.engine.export.gguf_rows import permuted
from slidepack.engine.export.gguf_stream import announce, append, begin
from slidepack.engine.families.gguf_table import stores_permuted, tensor_name
from slidepack.engine.shape import ModelShape

__all__ = ["write_gguf_lora"]


def write_gguf_lora(path: Path, adapter: Adapter, shape: ModelShape, name: str) -> None:
    """Write the adapter's tensors in fp32: they are small, and nothing is rounded.

    Args:
        path: of the file; its folder exists.
        adapter: what was trained.
        shape: of its base.
        name: how the result is called.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED: llama.cpp computes the base otherwise.
        OSError: the disk refused.
    """
    family = gguf_family(shape)
    writer = GGUFWriter(path, family.name)
    with closing(writer):
        writer.add_type("adapter")
        writer.add_name(name)
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", _alpha(adapter))
        tensors: dict[str, Tensor] = {}
        for hf_name, pair in adapter.pairs.items():
            gguf_name = tensor_name(hf_name, shape)
            b = permuted(pair.b, shape.head_dim) if stores_permuted(hf_name, family) else pair.b
            tensors |= {f"{gguf_name}.lora_a": pair.a, f"{gguf_name}.lora_b": b}
        for key, tensor in tensors.items():
            announce(writer, key, tuple(tensor.shape), GGMLQuantizationType.F32)
        begin(writer)
        for tensor in tensors.values():
            append(writer, tensor.contiguous().numpy())


def _alpha(adapter: Adapter) -> float:
    # llama.cpp always scales by alpha / rank; of rank-stabilised LoRA it knows nothing.
    return adapter.method.scale * adapter.method.rank
