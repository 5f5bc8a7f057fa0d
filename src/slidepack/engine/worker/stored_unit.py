"""One unit of a full fine-tuning's checkpoint, read a part at a time, in whatever form it is.

What was in RAM is in a safetensors file; what was on a drive is in the file that was there, as
`tier.json` describes it.
"""

import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import Frozen
from slidepack.engine.nvme.files import Check, TierFile
from slidepack.engine.sliding.state_format import FIELDS, MomentFormat, StateFormat, count_of
from slidepack.engine.sliding.tier_layout import (
    TIER_CHUNK,
    Request,
    TierParts,
    UnitLayout,
    unit_layout,
)

__all__ = [
    "StoredUnit",
    "TierCheck",
    "TierRecord",
    "TierUnit",
    "read_tier_record",
    "tier_paths",
    "unit_path",
    "write_tier_record",
]

_RECORD: Final = "tier.json"
_DTYPES: Final = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
_MOMENTS: Final[dict[str, MomentFormat]] = {"F32": "fp32", "BF16": "bf16", "I8": "int8"}
_LONGEST_HEADER: Final = 1 << 20
_READERS: Final = 8


class TierUnit(Frozen, frozen=True):
    """What of a unit is in a file of its own."""

    master: bool
    moments: bool


class TierCheck(Frozen, frozen=True, array_like=True):
    """The digest of bytes of a unit's files."""

    offset: int
    """Of the first, over all files of the unit."""
    size: int
    crc: int
    """CRC-32 of what was in memory, not of what a drive gave back."""


class TierRecord(Frozen, frozen=True, kw_only=True):
    """How the state that was on drives lies in a checkpoint's files."""

    chunk: int
    """Elements."""
    stripes: int
    """Files of each unit."""
    split: bool
    moments: MomentFormat
    elements: tuple[int, ...]
    """Of every unit."""
    units: tuple[TierUnit, ...]
    checks: tuple[tuple[TierCheck, ...], ...] = ()
    """Of every unit's files, as they were when they were written; empty in older checkpoints."""

    def layout(self, index: int) -> UnitLayout | None:
        """Return the layout of a unit's file; None where it has none."""
        form = StateFormat(split=self.split, moments=self.moments)
        parts = TierParts(self.units[index].master, self.units[index].moments)
        return unit_layout(self.elements[index], form, parts, self.chunk)

    def checks_of(self, index: int) -> dict[int, Check]:
        """Return the digests of a unit's files."""
        found = self.checks[index] if self.checks else ()
        return {one.offset: Check(one.size, one.crc) for one in found}


def unit_path(folder: Path, index: int) -> Path:
    """Return the safetensors file of a unit."""
    return folder / f"unit-{index:05d}.safetensors"


def tier_paths(folder: Path, index: int, stripes: int) -> list[Path]:
    """Return the files of what a unit had on drives, one for each of them."""
    return [folder / f"unit-{index:05d}.state-{part}" for part in range(stripes)]


def read_tier_record(folder: Path) -> tuple[TierRecord | None, bytes]:
    """Return how state that was on drives is kept, and the record's bytes; None where none was.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged.
    """
    try:
        data = (folder / _RECORD).read_bytes()
    except FileNotFoundError:
        return None, b""
    try:
        return msgspec.json.decode(data, type=TierRecord), data
    except msgspec.DecodeError as error:
        raise ValueError(f"{_RECORD} is damaged: {error}") from error


def write_tier_record(folder: Path, record: TierRecord) -> bytes:
    """Write a record durably, and return its bytes.

    Raises:
        OSError: the disk refused.
    """
    data = msgspec.json.encode(record)
    with (folder / _RECORD).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return data


class StoredUnit:
    """A unit in a checkpoint; use it as a context."""

    def __init__(self, folder: Path, index: int, elements: int) -> None:
        """Open its files.

        Args:
            folder: of the checkpoint.
            index: of the unit.
            elements: that it must have.

        Raises:
            OSError: a file cannot be read.
            ValueError: it is damaged, or of another model.
        """
        self.elements = elements
        self._path = unit_path(folder, index)
        record, _ = read_tier_record(folder)
        self.layout = None if record is None else record.layout(index)
        self._header: dict[str, tuple[torch.dtype, int, int]] = {}
        """Dtype, first byte and values of what is in the safetensors file."""
        self._kinds: dict[str, str] = {}
        if self.layout is None or self._path.exists():
            self._read_header()
        self.form = self._form()
        missing = [
            name
            for name in self.form.dtypes
            if name not in self._header and (self.layout is None or name not in self.layout.fields)
        ]
        wrong = [
            name
            for name, (_, _, count) in self._header.items()
            if count != count_of(name, elements)
        ]
        if missing or wrong or (self.layout is not None and self.layout.elements != elements):
            raise ValueError(f"unit {index} is of another model, or incomplete")
        self._file: TierFile | None = None
        if record is not None and self.layout is not None:
            paths = tier_paths(folder, index, record.stripes)
            try:
                self._file = TierFile.open(paths, self.layout.bytes)
            except SlidepackError as error:
                raise ValueError(error.report.why) from error
            # It is read once, into memory that is not aligned.
            self._file.use_page_cache("a checkpoint is read")

    def __enter__(self) -> "StoredUnit":
        """Return the unit."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close its files."""
        if self._file is not None:
            self._file.close()

    def _read_header(self) -> None:
        with self._path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            text = file.read(length) if 0 < length <= _LONGEST_HEADER else b""
        try:
            header: dict[str, Any] = json.loads(text)
            for name, entry in header.items():
                first, last = entry["data_offsets"]
                kind = _DTYPES[entry["dtype"]]
                self._header[name] = kind, 8 + length + first, (last - first) // kind.itemsize
                self._kinds[name] = entry["dtype"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{self._path.name} is damaged: it does not say what it holds"
            ) from error

    def _form(self) -> StateFormat:
        if self.layout is not None:
            return self.layout.form
        try:
            return StateFormat(
                split="remainder" in self._header, moments=_MOMENTS[self._kinds["exp_avg"]]
            )
        except KeyError as error:
            raise ValueError(
                f"{self._path.name} is damaged: it does not say what it holds"
            ) from error

    def pieces(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield the unit's tensors by name, some elements at a time, with the first of these.

        Raises:
            OSError: a file cannot be read.
            ValueError: it ends early.
        """
        for start, found in self.pieces_in_ram():
            if self.layout is not None:
                found |= self._from_tier(start // self.layout.chunk)
            yield start, {name: found[name] for name in FIELDS if name in found}

    def pieces_in_ram(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield as `pieces` does, without what was on a drive.

        Raises:
            OSError: the file cannot be read.
        """
        step = TIER_CHUNK if self.layout is None else self.layout.chunk
        for start in range(0, self.elements, step):
            yield start, self._from_tensors(start, min(start + step, self.elements))

    def _from_tensors(self, start: int, stop: int) -> dict[str, Tensor]:
        found = {}
        for name, (dtype, offset, _) in self._header.items():
            first, last = count_of(name, start), count_of(name, stop)
            room = bytearray((last - first) * dtype.itemsize)
            with self._path.open("rb") as file:
                _read_at(file.fileno(), memoryview(room), offset + first * dtype.itemsize)
            found[name] = torch.frombuffer(room, dtype=dtype)
        return found

    def _from_tier(self, index: int) -> dict[str, Tensor]:
        assert self.layout is not None
        requests = self.layout.requests(index)
        room = bytearray(sum(request.size for request in requests))
        for request in requests:
            self._read_request(request, memoryview(room))
        return self.layout.views(torch.frombuffer(room, dtype=torch.uint8), index)

    def check_tier(self, checks: Mapping[int, Check]) -> None:
        """Compare what is in the files with the digests of what was written.

        Raises:
            OSError: a file cannot be read.
            ValueError: it holds something else.
        """
        if self._file is None:
            return

        def is_same(entry: tuple[int, Check]) -> bool:
            offset, check = entry
            room = memoryview(bytearray(check.size))
            self._read_request(Request(offset, 0, check.size), room)
            return zlib.crc32(room) == check.crc

        # One thread is slower than a drive.
        with ThreadPoolExecutor(_READERS) as pool:
            for entry, same in zip(checks.items(), pool.map(is_same, checks.items()), strict=True):
                if not same:
                    raise ValueError(
                        f"{entry[1].size} bytes at {entry[0]} of {self._path.stem} are not what "
                        "was written"
                    )

    def _read_request(self, request: Request, room: memoryview) -> None:
        assert self._file is not None
        for piece in self._file.pieces(request.offset, request.size, request.size):
            first = request.start + piece.start
            view = room[first : first + piece.size]
            _read_at(self._file.descriptor(piece.part), view, piece.offset)


def _read_at(descriptor: int, room: memoryview, offset: int) -> None:
    done = 0
    while done < len(room):
        moved = os.preadv(descriptor, [room[done:]], offset + done)
        if not moved:
            raise OSError(errno.EIO, f"it ends at byte {offset + done}")
        done += moved
