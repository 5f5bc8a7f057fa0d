"""Passes that go on with sequences whose past is in a cache.

Shapes: `T` tokens of a pass, `B` sequences, `D` model width, `V` vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.lanes import LanePass
from slidepack.engine.model.batch import pack_rows
from slidepack.engine.model.decoder import AttentionFunction, decoder_layer
from slidepack.engine.model.ends import embed, final_hidden, head_logits
from slidepack.engine.model.kv_cache import KvCache, Piece
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.rope import RopeFrequencies, RopeTables, rope_tables
from slidepack.kernels import attention, upload

__all__ = ["CachedPasses", "TokenRow", "walk"]


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token of each of some sequences, on the device."""

    ids: Tensor
    """[B] int64."""
    seats: Tensor
    """[B] int64."""
    starts: Tensor
    """[B] int64: tokens of each sequence that are in the cache already."""
    reach: int
    """More than any of `starts`."""


def _no_check() -> None:
    """Stop nothing."""


class CachedPasses:
    """A model over a cache."""

    def __init__(
        self,
        decoder: Decoder,
        choices: LayerAttention,
        cache: KvCache,
        check_stop: Callable[[], None] = _no_check,
    ) -> None:
        """Bind them.

        Args:
            decoder: the base model.
            choices: what each layer's attention computes.
            cache: of the model.
            check_stop: called at every layer; may raise to abandon a pass.
        """
        self.decoder = decoder
        self.cache = cache
        self._choices = choices
        self._check_stop = check_stop
        self._frequencies = RopeFrequencies.of(decoder.shape, decoder.device)

    def advance(self, pieces: Sequence[Piece], lanes: LanePass | None) -> Tensor:
        """Read each piece; return the logits behind its last token, [B, V].

        Args:
            pieces: in the order of the lanes.
            lanes: of the row of all pieces; None for the bare base.

        Raises:
            torch.OutOfMemoryError: it does not fit. The cache holds what it held: places behind a
                sequence's end count for nothing.
        """
        if all(piece.start == 0 for piece in pieces) and any(len(p.ids) > 1 for p in pieces):
            return self._read_new(pieces, lanes)
        if self.decoder.device.type != "cpu" and all(len(piece.ids) == 1 for piece in pieces):
            return self.token_pass(self.token_row(pieces), lanes)
        return self._read_on(pieces, lanes)

    def token_row(self, pieces: Sequence[Piece]) -> TokenRow:
        """Lay out pieces of one token."""
        rows = torch.tensor([(piece.ids[0], piece.seat, piece.start) for piece in pieces])
        ids, seats, starts = upload(rows.T.contiguous(), self.decoder.device)
        return TokenRow(ids, seats, starts, max(piece.end for piece in pieces))

    def token_pass(self, row: TokenRow, lanes: LanePass | None) -> Tensor:
        """Read one token a sequence by launches that depend on no length; return [B, V]."""
        rope = self._rope(row.starts)

        def attend_at(layer: int) -> AttentionFunction:
            choice = self._choices.at(layer)
            return lambda q, k, v: self.cache.attend_tokens(
                layer, q, k, v, row.seats, row.starts, row.reach, choice
            )

        return self._logits(self._walk(lanes, row.ids, rope, attend_at))

    def _read_new(self, pieces: Sequence[Piece], lanes: LanePass | None) -> Tensor:
        """Read sequences from their beginning, by the attention that training has."""
        decoder = self.decoder
        rows = [EncodedRow(0, piece.ids, (False,) * len(piece.ids)) for piece in pieces]
        batch = pack_rows(rows, decoder.shape, decoder.device, decoder.dtype)

        def attend_at(layer: int) -> AttentionFunction:
            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                self.cache.store_pieces(layer, k, v, pieces)
                return attention(q, k, v, batch.segments, self._choices.at(layer))

            return attend

        x = self._walk(lanes, batch.ids, batch.rope, attend_at)
        return self._logits(x[batch.segments.cu_seqlens[1:].to(torch.int64) - 1])

    def _read_on(self, pieces: Sequence[Piece], lanes: LanePass | None) -> Tensor:
        """Read pieces of any length, sequence by sequence."""
        places = [place for piece in pieces for place in range(piece.start, piece.end)]
        ids = [token for piece in pieces for token in piece.ids]
        ids_T, positions_T = upload(torch.tensor([ids, places]), self.decoder.device)

        def attend_at(layer: int) -> AttentionFunction:
            choice = self._choices.at(layer)
            return lambda q, k, v: self.cache.attend_pieces(layer, q, k, v, pieces, choice)

        x = self._walk(lanes, ids_T, self._rope(positions_T), attend_at)
        if len(pieces) < len(ids):
            ends = torch.tensor([len(piece.ids) for piece in pieces]).cumsum(0) - 1
            x = x[upload(ends, self.decoder.device)]
        return self._logits(x)

    def _rope(self, positions: Tensor) -> RopeTables:
        decoder = self.decoder
        return rope_tables(decoder.shape, positions, decoder.dtype, self._frequencies)

    def _walk(
        self,
        lanes: LanePass | None,
        ids: Tensor,
        rope: RopeTables,
        attend_at: Callable[[int], AttentionFunction],
    ) -> Tensor:
        return walk(self.decoder, lanes, ids, rope, attend_at, self._check_stop)

    def _logits(self, x: Tensor) -> Tensor:
        decoder = self.decoder
        hidden = final_hidden(x, decoder.final_norm, decoder.shape)
        return head_logits(hidden, decoder.head, decoder.shape)


def walk(
    decoder: Decoder,
    lanes: LanePass | None,
    ids: Tensor,
    rope: RopeTables,
    attend_at: Callable[[int], AttentionFunction],
    check_stop: Callable[[], None] = _no_check,
) -> Tensor:
    """Return the last layer's output, [T, D].

    Args:
        decoder: the base model.
        lanes: of the row, or None for the bare base.
        ids: [T] int64.
        rope: tables of the row.
        attend_at: returns a layer's attention.
        check_stop: called at every layer; may raise to abandon the pass.
    """
    shape = decoder.shape
    x = embed(decoder.embedding, ids, shape)
    for layer, weights in enumerate(decoder.layers):
        check_stop()
        adapter = None if lanes is None else lanes.layer(layer)
        table = rope.of_window(shape.window_of(layer))
        x = decoder_layer(x, weights, shape, table, attend_at(layer), adapter)
    return x
