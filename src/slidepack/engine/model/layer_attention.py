"""What attention computes at each layer of a model, and by which path."""

from dataclasses import dataclass

import torch

from slidepack.engine.shape import ModelShape
from slidepack.kernels import AttentionChoice, choose_attention


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """The attention of every layer; made once for a model, a device and a dtype."""

    choices: tuple[AttentionChoice, ...]
    """One a layer."""

    def at(self, layer: int) -> AttentionChoice:
        """Return what attention computes at a layer."""
        return self.choices[layer]

    @property
    def path(self) -> str:
        """The path; it depends on nothing that differs from layer to layer."""
        return self.choices[0].path

    @property
    def reason(self) -> str:
        """Why that path, in words."""
        return self.choices[0].reason


def layer_attention(
    shape: ModelShape, device: torch.device, dtype: torch.dtype, *, deterministic: bool = False
) -> LayerAttention:
    """Choose the attention of every layer.

    Args:
        shape: head size, windows, scale and soft cap.
        device: where the tensors will be.
        dtype: of queries, keys and values.
        deterministic: whether the backward pass must give the same bits every time.
    """
    by_window = {
        window: choose_attention(
            device,
            dtype,
            shape.head_dim,
            window=window,
            soft_cap=shape.attention_soft_cap,
            scale=shape.attention_scale,
            deterministic=deterministic,
        )
        for window in {shape.window_of(layer) for layer in range(shape.num_layers)}
    }
    return LayerAttention(
        tuple(by_window[shape.window_of(layer)] for layer in range(shape.num_layers))
    )
