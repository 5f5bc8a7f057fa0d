"""Padding-free rows: several sequences laid end to end, positions restarted at each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.rope import RopeTables, rope_tables
from slidepack.engine.shape import ModelShape
from slidepack.kernels import Segments


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
    ids: list[int] = []
    positions: list[int] = []
    bounds = [0]
    predicting: list[int] = []
    labels: list[int] = []
    for row in rows:
        start = bounds[-1]
        ids.extend(row.ids)
        positions.extend(range(len(row.ids)))
        for index in range(1, len(row.ids)):
            if row.supervised[index]:
                predicting.append(start + index - 1)
                labels.append(row.ids[index])
        bounds.append(start + len(row.ids))
    return PackedBatch(
        ids=torch.tensor(ids, dtype=torch.int64, device=device),
        rope=rope_tables(shape, torch.tensor(positions, device=device), dtype),
        segments=Segments(
            bounds=tuple(bounds),
            cu_seqlens=torch.tensor(bounds, dtype=torch.int32, device=device),
        ),
        predicting=torch.tensor(predicting, dtype=torch.int64, device=device),
        labels=torch.tensor(labels, dtype=torch.int64, device=device),
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
