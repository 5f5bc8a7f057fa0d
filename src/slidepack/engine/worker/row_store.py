"""Encoded rows in a file of the run: training reads the few that a step needs."""

import os
import tempfile
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final, overload

import numpy as np

from slidepack.engine.data.masking import EncodedRow

__all__ = ["RowStore"]

_BUFFER_BYTES: Final = 1 << 20


class RowStore(Sequence[EncodedRow]):
    """Rows of token ids and masks behind an index: some 20 bytes a row are in memory.

    The file has no name, so it is gone with the process, however that ends.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Begin empty.

        Args:
            folder: on whose disk the rows are; None for the system's temporary folder.

        Raises:
            OSError: the disk refused.
        """
        # Kept open as long as the store; nothing to close earlier.
        self._file = tempfile.TemporaryFile(buffering=_BUFFER_BYTES, dir=folder)  # noqa: SIM115
        self._starts = array("Q", [0])
        self._lines = array("q")
        self._dirty = False

    def append(self, row: EncodedRow) -> None:
        """Add a row.

        Raises:
            OSError: the disk refused.
        """
        ids = np.asarray(row.ids, dtype=np.int32)
        self._file.write(ids.tobytes())
        self._file.write(np.asarray(row.supervised, dtype=np.bool_).tobytes())
        self._starts.append(self._starts[-1] + len(row.ids))
        self._lines.append(row.line)
        self._dirty = True

    def __len__(self) -> int:
        """Return how many rows there are."""
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> EncodedRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[EncodedRow]: ...
    def __getitem__(self, index: int | slice) -> EncodedRow | list[EncodedRow]:
        """Read a row, or the rows of a slice."""
        if isinstance(index, slice):
            return [self._read(number) for number in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self._read(index % len(self))

    def _read(self, number: int) -> EncodedRow:
        if self._dirty:
            self._file.flush()
            self._dirty = False
        start, end = self._starts[number], self._starts[number + 1]
        width = np.dtype(np.int32).itemsize + 1
        count = end - start
        data = os.pread(self._file.fileno(), count * width, start * width)
        ids = np.frombuffer(data, dtype=np.int32, count=count)
        supervised = np.frombuffer(data, dtype=np.bool_, offset=ids.nbytes)
        return EncodedRow(self._lines[number], tuple(ids.tolist()), tuple(supervised.tolist()))
