"""Rows of lanes as one block of bytes, that takes the place of the last row's on the device.

Rows of the same `StagedKey` have tensors of the same shapes: sizes are rounded up, and filled up
with what no lane owns. What has been recorded for one of them can then be replayed for the others.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor

from slidepack.engine.lora.lanes import LaneAdapters, LanePass, LaneWork
from slidepack.engine.lora.rows import LaneTensors, lane_tensors, supervised_tokens
from slidepack.kernels import padded_tables

__all__ = ["StagedKey", "StagedMicro", "StagedRow", "rounded", "stage", "staged_on"]

_SMALLEST: Final = 64
_STEPS: Final = 8
"""Sizes between two powers of two: at most an eighth of a row is padding."""
_ALIGNMENT: Final = 128
"""Bytes to which each tensor is aligned within the block."""
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A row and its lanes; the tensors are in host memory or views of a block on the device."""

    row: LaneTensors
    lanes: LanePass


@dataclass(frozen=True, slots=True)
class StagedKey:
    """What rows have in common that pass by the same launches."""

    adapters: LaneAdapters
    """By identity: it knows where the lanes are."""
    tokens: int
    labels: int
    sequences: int
    longest: int
    """Tokens of a sequence at most."""
    add: bool
    """Whether gradients are added to those that are there."""


@dataclass(frozen=True, slots=True)
class StagedMicro:
    """A micro-batch in host memory, ready to take another's place."""

    key: StagedKey
    staged: StagedRow
    """In host memory: its shapes are those of every row of the key."""
    block: Tensor
    """[bytes] uint8: all of its tensors, in pinned memory beside a GPU."""


def rounded(size: int) -> int:
    """Return the size that a row's size is filled up to."""
    step = max(_SMALLEST, (1 << max(0, size - 1).bit_length()) // 2 // _STEPS)
    return -(-size // step) * step


def stage(work: LaneWork, adapters: LaneAdapters, dtype: torch.dtype) -> StagedMicro:
    """Lay out a micro-batch, its sizes rounded, as one block.

    Args:
        work: the micro-batch.
        adapters: of its lanes.
        dtype: of the activations.
    """
    laid = _laid_out(work, dtype)
    host = torch.device("cpu")
    lanes = adapters.lane_pass(
        laid.bounds, first=work.first, dropout=adapters.dropout(laid, work.seeds), device=host
    )
    staged = StagedRow(laid, _with_padded_tables(lanes))
    row = laid.row
    key = StagedKey(
        adapters=adapters,
        tokens=row.ids.numel(),
        labels=row.labels.numel(),
        sequences=row.cu_seqlens.numel() - 1,
        longest=row.bounds[1],
        add=lanes.add,
    )
    tensors = list(_tensors(staged))
    pin = torch.cuda.is_available()
    block = torch.empty(sum(map(_room, tensors)), dtype=torch.uint8, pin_memory=pin)
    for tensor, place in zip(tensors, _places(block, tensors), strict=True):
        place.copy_(tensor)
    return StagedMicro(key, staged, block)


def _laid_out(work: LaneWork, dtype: torch.dtype) -> LaneTensors:
    pieces = [piece for piece in work.pieces if piece is not None]
    tokens = sum(piece.tokens for piece in pieces)
    labels = rounded(sum(supervised_tokens(piece.rows) for piece in pieces))
    # No pass is longer than one that the plan has room for.
    pad_to = work.exact_tokens or max(tokens, min(rounded(tokens), work.most_tokens))
    laid = lane_tensors(
        work.pieces,
        work.denominators,
        dtype,
        pad_to=pad_to,
        pad_labels=work.exact_tokens or min(labels, pad_to),
    )
    return _with_sequences(laid)


def staged_on(micro: StagedMicro, block: Tensor) -> StagedRow:
    """Return the row as views of another block of as many bytes, which is filled later."""
    places = _places(block, list(_tensors(micro.staged)))
    return _mapped(micro.staged, lambda _: next(places))


def _with_sequences(laid: LaneTensors) -> LaneTensors:
    """Return the row with a rounded number of sequences, those added empty, and rounded bounds.

    The bounds on the host only say how long the longest is: that many tokens, again and again.
    """
    row, bounds = laid.row, laid.row.bounds
    tokens = bounds[-1]
    count = 1 << (len(bounds) - 2).bit_length()
    longest = max(end - start for start, end in itertools.pairwise(bounds))
    longest = min(tokens, 1 << (longest - 1).bit_length())
    offsets = torch.nn.functional.pad(row.cu_seqlens, (0, count + 1 - len(bounds)), value=tokens)
    even = tuple(min(tokens, number * longest) for number in range(count + 1))
    return replace(laid, row=replace(row, bounds=even, cu_seqlens=offsets))


def _with_padded_tables(lanes: LanePass) -> LanePass:
    tables = {name: padded_tables(table) for name, table in lanes.tables.items()}
    return replace(lanes, tables=tables)


def _mapped(value: _Value, change: Callable[[Tensor], Tensor]) -> _Value:
    """Return the same structure with other tensors; adapters, which are no part of it, stay."""
    if isinstance(value, Tensor):
        return cast(_Value, change(value))
    if isinstance(value, Mapping):
        return cast(_Value, {name: _mapped(one, change) for name, one in value.items()})
    if is_dataclass(value) and not isinstance(value, type):
        new: dict[str, Any] = {
            field.name: _mapped(getattr(value, field.name), change)
            for field in fields(value)
            if field.init
        }
        return cast(_Value, type(value)(**new))
    return value


def _tensors(staged: StagedRow) -> Iterator[Tensor]:
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _mapped(staged, keep)
    return iter(found)


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def _places(block: Tensor, tensors: list[Tensor]) -> Iterator[Tensor]:
    """Yield a view of the block for each tensor."""
    start = 0
    for tensor in tensors:
        yield block[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        start += _room(tensor)
