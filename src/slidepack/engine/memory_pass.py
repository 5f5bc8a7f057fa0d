"""What a pass holds of a layer and of the head, counted as the kernels allocate it. Torch-free.

Elements are of the passes' dtype; on a card they are those of the fused kernels.
"""

from typing import Final

from slidepack.engine.shape import ModelShape

__all__ = [
    "card_kept_elements",
    "card_layer_elements",
    "card_pass_elements",
    "head_chunk_elements",
    "head_row_elements",
    "largest_matrix",
    "layer_kept_elements",
]

_HEAD_CHUNK: Final = {False: 1 << 28, True: 1 << 25}
"""Logits at once on a card, and on a CPU."""
_HEAD_ROWS: Final = 5
"""Head's inputs and gradients of a micro-batch: gathered, normed, and three gradients."""


def layer_kept_elements(shape: ModelShape) -> int:
    """Return what autograd keeps of one layer for one token, with plain torch operations."""
    kept = 7 * shape.hidden + 4 * shape.q_width + 3 * shape.kv_width + 5 * shape.ffn
    # Each norm more holds its input, which nothing else would.
    if shape.sandwich_norms:
        kept += 2 * shape.hidden
    if shape.qk_norm:
        kept += shape.q_width + shape.kv_width
    return kept


def card_kept_elements(shape: ModelShape) -> int:
    """Return what autograd keeps of one layer for one token, with the fused kernels."""
    return sum(_card_parts(shape))


def _card_parts(shape: ModelShape) -> tuple[int, int]:
    """Return what is kept up to the output of attention, and from there on."""
    d, f, q, k = shape.hidden, shape.ffn, shape.q_width, shape.kv_width
    # Normed input, fused and rotated projections, repeated keys and values, attention's output.
    attention = d + 3 * q + 3 * k + (2 * q if q > k else 0)
    if shape.qk_norm:
        attention += q + k
    # The sum after attention, its norm, gate and up, and their product.
    rest = 2 * d + 3 * f
    if shape.sandwich_norms:
        attention, rest = attention + d, rest + d
    return attention, rest


def card_layer_elements(shape: ModelShape, tokens: int, *, trained: bool) -> int:
    """Return the peak of one layer's recompute and backward pass with the fused kernels.

    Args:
        shape: sizes.
        tokens: of the micro-batch.
        trained: whether the layer's own weights get gradients.
    """
    d, f, q = shape.hidden, shape.ffn, shape.q_width
    attention, rest = _card_parts(shape)
    down, gate_up = (f * d, largest_matrix(shape)) if trained else (0, 0)
    # From here up: the output, and at each point what has been made and not been freed.
    at_down = (attention + rest + f + d) * tokens + down
    at_gate = (attention + rest + 2 * f + d) * tokens
    at_gate_up = (attention + 2 * f + 4 * d) * tokens + gate_up
    at_attention = (attention + 4 * q + 3 * d) * tokens
    return max(at_down, at_gate, at_gate_up, at_attention)


def card_pass_elements(shape: ModelShape, tokens: int, *, trained: bool) -> int:
    """Return what a micro-batch holds while one layer, or the head, is differentiated."""
    head = head_row_elements(shape, tokens) + head_chunk_elements(shape, tokens, on_cpu=False)
    return max(head, card_layer_elements(shape, tokens, trained=trained))


def largest_matrix(shape: ModelShape) -> int:
    """Gate and up are one product, whose gradient exists before it is added to the layer's."""
    return 2 * shape.ffn * shape.hidden


def head_chunk_elements(shape: ModelShape, tokens: int, *, on_cpu: bool) -> int:
    """Return the logits that are there at once."""
    return min(tokens, max(1, _HEAD_CHUNK[on_cpu] // shape.vocab)) * shape.vocab


def head_row_elements(shape: ModelShape, tokens: int) -> int:
    """Return the head's inputs and their gradients."""
    return _HEAD_ROWS * tokens * shape.hidden
