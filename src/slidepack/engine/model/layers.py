"""The decoder's parameters: one flat buffer a layer, with named views into it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Every tensor is a view into `flat`.

    Shapes: D model, Q = heads * head size, K = KV heads * head size, F feed-forward.
    """

    flat: Tensor
    """[layer parameters], contiguous."""
    input_norm: Tensor
    """[D]"""
    qkv: Tensor
    """[Q + 2K, D]: q, k and v are neighbours, so one product serves all three."""
    o: Tensor
    """[D, Q]"""
    post_norm: Tensor
    """[D]"""
    gate_up: Tensor
    """[2F, D]"""
    down: Tensor
    """[D, F]"""
    named: dict[str, Tensor]
    """The tensors under their Hugging Face names, e.g. `self_attn.q_proj.weight`."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A whole model on one device; frozen."""

    shape: ModelShape
    embedding: Tensor
    """[V, D]"""
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    """[D]"""
    head: Tensor
    """[V, D]; the embedding itself where the head is tied."""

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return self.embedding.dtype


def layer_over(flat: Tensor, shape: ModelShape) -> LayerWeights:
    """Lay named views over a flat buffer of `shape.layer_params` elements.

    Raises:
        ValueError: the buffer has another size.
    """
    if flat.numel() != shape.layer_params:
        raise ValueError(f"buffer has {flat.numel()} elements, a layer has {shape.layer_params}")
    named: dict[str, Tensor] = {}
    offset = 0
    for name, size in shape.layer_tensor_shapes().items():
        count = size[0] if len(size) == 1 else size[0] * size[1]
        named[name] = flat[offset : offset + count].view(size)
        offset += count
    return LayerWeights(
        flat=flat,
        input_norm=named["input_layernorm.weight"],
        qkv=_neighbours(flat, named["self_attn.q_proj.weight"], shape.q_width + 2 * shape.kv_width),
        o=named["self_attn.o_proj.weight"],
        post_norm=named["post_attention_layernorm.weight"],
        gate_up=_neighbours(flat, named["mlp.gate_proj.weight"], 2 * shape.ffn),
        down=named["mlp.down_proj.weight"],
        named=named,
    )


def _neighbours(flat: Tensor, first: Tensor, rows: int) -> Tensor:
    """Return the matrix of `rows` rows that starts where `first` does."""
    width = first.shape[1]
    start = first.storage_offset() - flat.storage_offset()
    return flat[start : start + rows * width].view(rows, width)
