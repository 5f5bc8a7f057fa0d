"""One packed row for many lanes: lane after lane, each one's sequences end to end.

Nothing of a lane's part depends on who else is in the row: positions and samples are counted within
the lane, and the weight of a token is that of its lane's own step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.batch import PackedBatch, micro_batches, pack_rows
from slidepack.engine.shape import ModelShape
from slidepack.kernels import upload

__all__ = ["LaneRow", "Piece", "lane_row", "micro_steps", "supervised_tokens"]

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
    """Lay the lanes' pieces side by side.

    Args:
        pieces: of each lane; None for a lane without tokens here.
        denominators: supervised tokens of each lane's whole step.
        shape: the base model's sizes.
        device: where it is wanted.
        dtype: of the activations.
        pad_to: tokens, and supervised tokens, that the row is filled up to with sequences that no
            lane owns and no loss counts, so that every product has the same shape; 0 for none.

    Raises:
        ValueError: no lane has a token, or the row is not shorter than `pad_to`.
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
    batch = pack_rows(rows, shape, device, dtype)
    missing = 0
    if pad_to:
        missing = pad_to - label_bounds[-1]
        batch = _with_labels(batch, pad_to)
    lengths = torch.tensor([len(row.ids) for row in rows])
    starts = torch.tensor(batch.segments.bounds[:-1])
    positions = torch.arange(batch.num_tokens) - torch.repeat_interleave(starts, lengths)
    counts = torch.tensor(label_bounds).diff()
    wide = torch.promote_types(dtype, torch.float32)
    weights = torch.repeat_interleave(torch.tensor(shares, dtype=wide), counts)
    samples = torch.repeat_interleave(torch.tensor(numbers, dtype=torch.int32), lengths)
    return LaneRow(
        batch=batch,
        bounds=(*bounds, batch.num_tokens),
        label_counts=upload(counts, device),
        samples=upload(samples, device),
        positions=upload(positions.to(torch.int32), device),
        weights=upload(pad(weights, (0, missing)), device),
    )


def _padding(tokens: int) -> list[EncodedRow]:
    """Return sequences of that many tokens.

    Raises:
        ValueError: there is none: a padded label needs a padded token.
    """
    if tokens < 1:
        raise ValueError(f"the row is {1 - tokens} tokens longer than it may be")
    lengths = [min(_PADDING_ROW, tokens - start) for start in range(0, tokens, _PADDING_ROW)]
    return [EncodedRow(0, (0,) * length, (False,) * length) for length in lengths]


def _with_labels(batch: PackedBatch, labels: int) -> PackedBatch:
    """Return the batch with that many labels: those added are the last token's, a padding."""
    missing = labels - batch.labels.numel()
    return replace(
        batch,
        predicting=pad(batch.predicting, (0, missing), value=batch.num_tokens - 1),
        labels=pad(batch.labels, (0, missing), value=0),
    )
