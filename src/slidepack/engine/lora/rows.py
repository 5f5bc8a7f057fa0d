"""One packed row for many lanes: lane after lane, each one's sequences end to end.

Nothing of a lane's part depends on who else is in the row: positions and samples are counted within
the lane, and the weight of a token is that of its lane's own step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.batch import PackedBatch, RowTensors, micro_batches, row_tensors
from slidepack.engine.model.rope import RopeFrequencies
from slidepack.engine.shape import ModelShape
from slidepack.kernels import upload

__all__ = [
    "LaneRow",
    "LaneTensors",
    "Piece",
    "lane_row",
    "lane_tensors",
    "micro_steps",
    "supervised_tokens",
]

_PADDING_ROW: Final = 128
"""Tokens of a sequence of padding: short, as attention's work grows with the square."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a lane's step that pass together."""

    rows: tuple[EncodedRow, ...]
    first_sample: int
    """Number of the first row within its lane's step."""

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return sum(len(row.ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A micro-batch of many lanes, ready for the decoder."""

    batch: PackedBatch
    bounds: tuple[int, ...]
    """N + 1 offsets of the lanes' tokens, and one more: after them comes padding."""
    label_counts: Tensor
    """[N] int64: each lane's supervised tokens; they lie lane after lane."""
    samples: Tensor
    """[T] int32: number of a token's sample within its lane's step."""
    positions: Tensor
    """[T] int32: position within the sample."""
    weights: Tensor
    """[S]: share of a supervised token in its lane's loss; 0 for padding."""
    landing: Tensor | None
    """[S] int64: the token that a label's gradient belongs to, T for padding; None where there is
    no padding among the labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneTensors:
    """What a `LaneRow` is made from; in host memory at first."""

    row: RowTensors
    bounds: tuple[int, ...]
    label_counts: Tensor
    samples: Tensor
    positions: Tensor
    weights: Tensor
    landing: Tensor | None = None

    def bind(
        self,
        shape: ModelShape,
        device: torch.device,
        dtype: torch.dtype,
        frequencies: RopeFrequencies | None = None,
    ) -> LaneRow:
        """Return the row on a device; see `rope_tables`."""
        return LaneRow(
            batch=self.row.bind(shape, device, dtype, frequencies),
            bounds=self.bounds,
            label_counts=upload(self.label_counts, device),
            samples=upload(self.samples, device),
            positions=upload(self.positions, device),
            weights=upload(self.weights, device),
            landing=None if self.landing is None else upload(self.landing, device),
        )

    def with_labels(self, labels: int) -> Self:
        """Return the row with that many labels; those added weigh nothing, and land nowhere."""
        row, tokens = self.row, self.row.ids.numel()
        added = (0, labels - row.labels.numel())
        return replace(
            self,
            row=replace(
                row,
                predicting=pad(row.predicting, added, value=tokens - 1),
                labels=pad(row.labels, added, value=0),
            ),
            weights=pad(self.weights, added),
            landing=pad(row.predicting, added, value=tokens),
        )


def supervised_tokens(rows: Sequence[EncodedRow]) -> int:
    """Return how many tokens of the rows count in a loss: a first token follows nothing."""
    return sum(sum(row.supervised[1:]) for row in rows)


def micro_steps(steps: Sequence[Sequence[EncodedRow]], max_tokens: int) -> list[list[Piece | None]]:
    """Spread the lanes' steps over micro-batches of at most `max_tokens` tokens.

    A lane's step is cut as it would be cut alone, and no micro-batch has two of its pieces: its
    gradient is then the same sum in the same order, whoever shares the pass. A row longer than
    `max_tokens` gets a micro-batch of its own.

    Args:
        steps: rows of each lane's optimizer step; none for a lane that sits this one out.
        max_tokens: of a micro-batch.

    Returns:
        For each micro-batch one piece or None for each lane.
    """
    waiting = [_pieces(rows, max_tokens) for rows in steps]
    batches: list[list[Piece | None]] = []
    while any(waiting):
        batch: list[Piece | None] = [None] * len(steps)
        room = max_tokens
        # Lanes with the most to do go first, so that none is left alone at the end.
        order = sorted(
            (lane for lane, pieces in enumerate(waiting) if pieces),
            key=lambda lane: (-sum(piece.tokens for piece in waiting[lane]), lane),
        )
        for lane in order:
            piece = waiting[lane][0]
            if piece.tokens <= room or room == max_tokens:
                batch[lane] = waiting[lane].pop(0)
                room -= piece.tokens
        batches.append(batch)
    return batches


def _pieces(rows: Sequence[EncodedRow], max_tokens: int) -> list[Piece]:
    pieces: list[Piece] = []
    first = 0
    for group in micro_batches(rows, max_tokens):
        pieces.append(Piece(tuple(group), first))
        first += len(group)
    return pieces


def lane_row(
    pieces: Sequence[Piece | None],
    denominators: Sequence[int],
    shape: ModelShape,
    device: torch.device,
    dtype: torch.dtype,
    *,
    pad_to: int = 0,
) -> LaneRow:
    """Lay the lanes' pieces side by side; see `lane_tensors`."""
    return lane_tensors(pieces, denominators, dtype, pad_to=pad_to).bind(shape, device, dtype)


def lane_tensors(
    pieces: Sequence[Piece | None],
    denominators: Sequence[int],
    dtype: torch.dtype,
    *,
    pad_to: int = 0,
    pad_labels: int | None = None,
) -> LaneTensors:
    """Lay the lanes' pieces side by side, in host memory.

    Args:
        pieces: of each lane; None for a lane without tokens here.
        denominators: supervised tokens of each lane's whole step.
        dtype: of the activations.
        pad_to: tokens that the row is filled up to with sequences that no lane owns and no loss
            counts, so that every product has the same shape; 0 for none.
        pad_labels: supervised tokens that it is filled up to; None for `pad_to`.

    Raises:
        ValueError: no lane has a token, or the row is longer than `pad_to`.
    """
    rows: list[EncodedRow] = []
    numbers: list[int] = []
    bounds, label_bounds = [0], [0]
    shares = []
    for piece, denominator in zip(pieces, denominators, strict=True):
        inside = () if piece is None else piece.rows
        first_sample = 0 if piece is None else piece.first_sample
        rows.extend(inside)
        numbers.extend(range(first_sample, first_sample + len(inside)))
        bounds.append(bounds[-1] + sum(len(row.ids) for row in inside))
        label_bounds.append(label_bounds[-1] + supervised_tokens(inside))
        shares.append(1.0 / max(1, denominator))
    if pad_to:
        padding = _padding(pad_to - bounds[-1])
        rows.extend(padding)
        numbers.extend([0] * len(padding))
    row = row_tensors(rows)
    lengths = torch.tensor([len(row.ids) for row in rows])
    counts = torch.tensor(label_bounds).diff()
    wide = torch.promote_types(dtype, torch.float32)
    laid = LaneTensors(
        row=row,
        bounds=(*bounds, row.bounds[-1]),
        label_counts=counts,
        samples=torch.repeat_interleave(torch.tensor(numbers, dtype=torch.int32), lengths),
        positions=row.positions.to(torch.int32),
        weights=torch.repeat_interleave(torch.tensor(shares, dtype=wide), counts),
    )
    return laid.with_labels(pad_to if pad_labels is None else pad_labels) if pad_to else laid


def _padding(tokens: int) -> list[EncodedRow]:
    """Return sequences of that many tokens.

    Raises:
        ValueError: fewer than none.
    """
    if tokens < 0:
        raise ValueError(f"the row is {-tokens} tokens longer than it may be")
    lengths = [min(_PADDING_ROW, tokens - start) for start in range(0, tokens, _PADDING_ROW)]
    return [EncodedRow(0, (0,) * length, (False,) * length) for length in lengths]
