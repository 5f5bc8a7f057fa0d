"""Padding-free rows: several sequences laid end to end, positions restarted at each."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.rope import RopeFrequencies, RopeTables, rope_tables
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTensors:
    """What a packed row is made from; in host memory at first."""

    bounds: tuple[int, ...]
    """Offsets of the sequences, one more than there are."""
    cu_seqlens: Tensor
    """The same, int32."""
    ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64: within each sequence."""
    predicting: Tensor
    """[S] int64; see `PackedBatch`."""
    labels: Tensor
    """[S] int64."""

    def bind(
        self,
        shape: ModelShape,
        device: torch.device,
        dtype: torch.dtype,
        frequencies: RopeFrequencies | None = None,
    ) -> PackedBatch:
        """Return the row on a device; see `rope_tables`."""
        positions = upload(self.positions, device)
        return PackedBatch(
            ids=upload(self.ids, device),
            rope=rope_tables(shape, positions, dtype, frequencies),
            segments=Segments(bounds=self.bounds, cu_seqlens=upload(self.cu_seqlens, device)),
            predicting=upload(self.predicting, device),
            labels=upload(self.labels, device),
        )


def row_tensors(rows: Sequence[EncodedRow]) -> RowTensors:
    """Lay rows end to end, in host memory.

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
    return RowTensors(
        bounds=bounds,
        cu_seqlens=torch.tensor(bounds, dtype=torch.int32),
        ids=ids,
        positions=torch.arange(bounds[-1]) - torch.repeat_interleave(starts, lengths),
        predicting=labelled - 1,
        labels=ids[labelled],
    )


def pack_rows(
    rows: Sequence[EncodedRow], shape: ModelShape, device: torch.device, dtype: torch.dtype
) -> PackedBatch:
    """Lay rows end to end.

    Raises:
        ValueError: no rows.
    """
    return row_tensors(rows).bind(shape, device, dtype)


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
