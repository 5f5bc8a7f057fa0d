"""Rows that a run leaves out: counted, and written down as they come, however many they are."""

from collections import Counter
from pathlib import Path
from typing import BinaryIO

import msgspec

from slidepack.engine.data.rows import Reject

__all__ = ["RejectLog"]


class RejectLog:
    """Keeps in memory what a sentence about them needs, and nothing of the others."""

    def __init__(self, path: Path | None) -> None:
        """Bind where they are written, one JSON object a line; the first one makes the file.

        Args:
            path: of the file; None writes nothing.
        """
        self.counts: Counter[str] = Counter()
        """By their reason."""
        self.first: Reject | None = None
        self._path = path
        self._file: BinaryIO | None = None

    def add(self, reject: Reject) -> None:
        """Take one more.

        Raises:
            OSError: it cannot be written.
        """
        self.counts[reject.reason] += 1
        self.first = self.first or reject
        if self._path is None:
            return
        if self._file is None:
            self._file = self._path.open("wb")
        self._file.write(msgspec.json.encode(reject) + b"\n")

    def close(self) -> None:
        """Write what is left; without effect the second time.

        Raises:
            OSError: it cannot be written.
        """
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def sentence(self) -> str:
        """Return how many there are, why, and which is the first; empty where there is none."""
        if self.first is None:
            return ""
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.counts.items()))
        return (
            f"{self.counts.total()} rows are left out ({reasons}); "
            f"the first is line {self.first.line}: {self.first.detail}."
        )
