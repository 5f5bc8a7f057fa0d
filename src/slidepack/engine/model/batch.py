"""Padding-free rows: several sequences laid end to end, positions restarted at each."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.rope import RopeTables, rope_tables
from slidepack.engine.shape import ModelShape
from slidepack.kernels import Segments, upload


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One micro-batch, ready for the decoder."""

    ids: Tensor
    """[T] int64."""
    rope: RopeTables
    segments: Segments
    predicting: Tensor
    """[S] int64: positions whose next token the loss counts."""
    labels: Tensor
    """[S] int64: those next tokens."""

    @property
    def num_tokens(self) -> int:
        """Tokens in the row."""
        return self.segments.bounds[-1]


def pack_rows(
    rows: Sequence[EncodedRow], shape: ModelShape, device: torch.device, dtype: torch.dtype
) -> PackedBatch:
    """Lay rows end to end.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("a batch needs at least one row")
    lengths = torch.tensor([len(row.ids) for row in rows])
    bounds = (0, *itertools.accumulate(lengths.tolist()))
    ids = torch.tensor(list(itertools.chain.from_iterable(row.ids for row in rows)))
    counted = torch.tensor(list(itertools.chain.from_iterable(row.supervised for row in rows)))
    starts = torch.tensor(bounds[:-1])
    # Nothing predicts the first token of a row.
    counted[starts] = False
    labelled = torch.nonzero(counted)[:, 0]
    positions = torch.arange(bounds[-1]) - torch.repeat_interleave(starts, lengths)
    return PackedBatch(
        ids=upload(ids, device),
        rope=rope_tables(shape, upload(positions, device), dtype),
        segments=Segments(
            bounds=bounds,
            cu_seqlens=upload(torch.tensor(bounds, dtype=torch.int32), device),
        ),
        predicting=upload(labelled - 1, device),
        labels=upload(ids[labelled], device),
    )


def micro_batches(rows: Sequence[EncodedRow], max_tokens: int) -> list[list[EncodedRow]]:
    """Cut the rows of a step, in order, into micro-batches of at most `max_tokens` tokens.

    A row longer than `max_tokens` gets a micro-batch of its own.
    """
    groups: list[list[EncodedRow]] = []
    room = 0
    for row in rows:
        if not groups or len(row.ids) > room:
            groups.append([])
            room = max_tokens
        groups[-1].append(row)
        room -= len(row.ids)
    return groups
