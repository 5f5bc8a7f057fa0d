"""Keys and values of what was read so far, and attention to them.

Shapes: `S` seats, `C` most tokens of a seat, `N` query heads, `K` key/value heads, `G` query heads
of one key/value head, `H` head size, `B` sequences of a pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape
from slidepack.kernels import AttentionChoice

__all__ = ["KvCache", "Piece", "attend_rows", "attend_span", "seat_bytes"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of one sequence in a pass."""

    seat: int
    start: int
    """Tokens of the sequence that are in the cache already."""
    ids: tuple[int, ...]
    """At least one."""

    @property
    def end(self) -> int:
        """Tokens in the cache after the pass."""
        return self.start + len(self.ids)


def seat_bytes(shape: ModelShape, context: int, dtype: torch.dtype) -> int:
    """Return the bytes of one seat of a cache."""
    return 2 * shape.num_layers * shape.num_kv_heads * context * shape.head_dim * dtype.itemsize


class KvCache:
    """Seats of one size, each for one sequence. Who sits where, and how far, is the caller's."""

    def __init__(
        self,
        shape: ModelShape,
        seats: int,
        context: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Take the memory; a CPU gives pages as they are written, a card all at once.

        Raises:
            torch.OutOfMemoryError: the card has no room.
            RuntimeError: nor has the host.
        """
        self.seats = seats
        self.context = context
        size = (shape.num_layers, 2, seats, shape.num_kv_heads, context, shape.head_dim)
        # Heads before places: what one head reads lies side by side. On a card places that are
        # hidden are read too, and nothing times NaN is NaN.
        make = torch.empty if device.type == "cpu" else torch.zeros
        self._held = make(size, dtype=dtype, device=device)

    @property
    def num_bytes(self) -> int:
        """Size of all seats."""
        return self._held.nbytes

    def of_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer, each [S, K, C, H], as views."""
        return self._held[layer, 0], self._held[layer, 1]

    def copy_start(self, source: int, target: int, tokens: int) -> None:
        """Copy what a seat holds of its first tokens to another seat."""
        self._held[:, :, target, :, :tokens] = self._held[:, :, source, :, :tokens]

    def clear(self, seat: int) -> None:
        """Overwrite a seat whose sequence gave no numbers."""
        self._held[:, :, seat].zero_()

    def attend_pieces(
        self,
        layer: int,
        q_TNH: Tensor,
        k_TKH: Tensor,
        v_TKH: Tensor,
        pieces: Sequence[Piece],
        choice: AttentionChoice,
    ) -> Tensor:
        """Store each piece's keys and values, and attend from it to all of its sequence so far.

        A sequence reads as much of its seat as it has filled, whoever else is in the pass.

        Returns:
            [T, N, H].
        """
        keys, values = self.of_layer(layer)
        outputs, at = [], 0
        for piece in pieces:
            rows = slice(at, at := at + len(piece.ids))
            seat_keys, seat_values = keys[piece.seat], values[piece.seat]
            seat_keys[:, piece.start : piece.end] = k_TKH[rows].transpose(0, 1)
            seat_values[:, piece.start : piece.end] = v_TKH[rows].transpose(0, 1)
            first = 0
            if choice.window is not None:
                first = max(0, piece.start + 1 - choice.window)
            outputs.append(
                attend_span(
                    q_TNH[rows],
                    seat_keys[:, first : piece.end],
                    seat_values[:, first : piece.end],
                    choice,
                )
            )
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def store_pieces(
        self, layer: int, k_TKH: Tensor, v_TKH: Tensor, pieces: Sequence[Piece]
    ) -> None:
        """Store each piece's keys and values."""
        keys, values = self.of_layer(layer)
        at = 0
        for piece in pieces:
            rows = slice(at, at := at + len(piece.ids))
            keys[piece.seat][:, piece.start : piece.end] = k_TKH[rows].transpose(0, 1)
            values[piece.seat][:, piece.start : piece.end] = v_TKH[rows].transpose(0, 1)

    def attend_tokens(
        self,
        layer: int,
        q_BNH: Tensor,
        k_BKH: Tensor,
        v_BKH: Tensor,
        seats_B: Tensor,
        starts_B: Tensor,
        reach: int,
        choice: AttentionChoice,
    ) -> Tensor:
        """Do the same for one token a sequence, by launches whose shapes do not depend on lengths.

        Args:
            layer: index.
            q_BNH: queries.
            k_BKH: keys of the same tokens.
            v_BKH: their values.
            seats_B: int64, on the device.
            starts_B: int64, tokens before this one, each below `reach`.
            reach: places of a seat that are looked at.
            choice: what the layer's attention computes.
        """
        keys, values = self.of_layer(layer)
        keys[seats_B, :, starts_B] = k_BKH
        values[seats_B, :, starts_B] = v_BKH
        return attend_rows(
            q_BNH,
            keys[:, :, :reach].index_select(0, seats_B),
            values[:, :, :reach].index_select(0, seats_B),
            starts_B,
            choice,
        )


def attend_span(
    q_LNH: Tensor, keys_KCH: Tensor, values_KCH: Tensor, choice: AttentionChoice
) -> Tensor:
    """Attend from the last `L` of `C` tokens to all of them that each sees; returns [L, N, H]."""
    tokens, heads, head_size = q_LNH.shape
    kv_heads, places, _ = keys_KCH.shape
    group = heads // kv_heads
    # Query heads that share keys are rows of one product, so that keys are not repeated.
    q = q_LNH.view(tokens, kv_heads, group, head_size).transpose(0, 1)
    q = q.reshape(1, kv_heads, tokens * group, head_size)
    visible = None
    if tokens > 1:
        visible = _visible_span(tokens, places, choice.window, q.device)
        visible = visible.repeat_interleave(group, dim=0)
    mixed = _attend(q, keys_KCH[None], values_KCH[None], visible, choice)
    mixed = mixed.view(kv_heads, tokens, group, head_size).transpose(0, 1)
    return mixed.reshape(tokens, heads, head_size)


def attend_rows(
    q_BNH: Tensor,
    keys_BKCH: Tensor,
    values_BKCH: Tensor,
    starts_B: Tensor,
    choice: AttentionChoice,
) -> Tensor:
    """Attend from the token at place `starts_B` of each row to what it sees; returns [B, N, H]."""
    rows, heads, head_size = q_BNH.shape
    kv_heads, reach = keys_BKCH.shape[1:3]
    places = torch.arange(reach, device=q_BNH.device)
    visible = places <= starts_B[:, None]
    if choice.window is not None:
        visible &= places > starts_B[:, None] - choice.window
    q = q_BNH.view(rows, kv_heads, heads // kv_heads, head_size)
    mixed = _attend(q, keys_BKCH, values_BKCH, visible[:, None, None], choice)
    return mixed.reshape(rows, heads, head_size)


def _visible_span(tokens: int, places: int, window: int | None, device: torch.device) -> Tensor:
    """Return which place (column) each of the last tokens (row) sees, bool [L, C]."""
    visible = torch.ones(tokens, places, dtype=torch.bool, device=device)
    visible = visible.tril(places - tokens)
    return visible if window is None else visible.triu(places - tokens + 1 - window)


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None, choice: AttentionChoice
) -> Tensor:
    cap = choice.soft_cap
    if cap is None:
        return torch.nn.functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=visible, scale=choice.scale
        )
    # torch's attention has no soft cap.
    scale = q.shape[-1] ** -0.5 if choice.scale is None else choice.scale
    scores = (q @ keys.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32)) * scale
    scores = cap * torch.tanh(scores / cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    return torch.softmax(scores, dim=-1).to(q.dtype) @ values
