"""A decoder layer over a packed row, as every walk runs it."""

from torch import Tensor

from slidepack.engine.model.batch import PackedBatch
from slidepack.engine.model.decoder import LayerAdapter, decoder_layer
from slidepack.engine.model.layers import LayerWeights
from slidepack.engine.shape import ModelShape
from slidepack.kernels import AttentionChoice, attention

__all__ = ["packed_layer"]


def packed_layer(
    x_TD: Tensor,
    weights: LayerWeights,
    shape: ModelShape,
    batch: PackedBatch,
    choice: AttentionChoice,
    adapter: LayerAdapter | None = None,
) -> Tensor:
    """Return the layer's output, [T, D].

    Args:
        x_TD: the layer's input.
        weights: of the layer.
        shape: sizes.
        batch: the row: its sequences and positions.
        choice: what the layer's attention computes, its window among it.
        adapter: the LoRA lanes, or None for the bare base.
    """
    return decoder_layer(
        x_TD,
        weights,
        shape,
        batch.rope.of_window(choice.window),
        lambda q, k, v: attention(q, k, v, batch.segments, choice),
        adapter,
    )
