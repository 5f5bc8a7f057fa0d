"""Writes an import's progress file."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

from slidepack.engine.importer.contract import (
    ImportFailed,
    ImportProgress,
    ImportResult,
    Stage,
    encode_line,
)

_INTERVAL_SECONDS: Final = 0.2


class Reporter:
    """Appends lines to a progress file, a few a second at most."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending.

        Raises:
            OSError: it cannot be opened.
        """
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._stage: Stage | None = None
        self._written_at = 0.0

    def __enter__(self) -> "Reporter":
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def show(self, done: int, total: int, stage: Stage) -> None:
        """Write how far a stage is; its first and last figures always, others now and then.

        Raises:
            OSError: the disk refused.
        """
        now = time.monotonic()
        due = now - self._written_at >= _INTERVAL_SECONDS
        if stage != self._stage or due or done == total:
            self._stage, self._written_at = stage, now
            self._write(encode_line(ImportProgress(done=done, total=total, stage=stage)))

    def counter(self, total: int, stage: Stage) -> Callable[[int], None]:
        """Start a stage of `total` bytes and return the function that adds to what is done."""
        done = 0

        def add(count: int) -> None:
            nonlocal done
            done += count
            self.show(done, total, stage)

        self.show(0, total, stage)
        return add

    def end(self, line: ImportResult | ImportFailed) -> None:
        """Write the outcome, durably.

        Raises:
            OSError: the disk refused.
        """
        self._write(encode_line(line))
        os.fsync(self._descriptor)

    def _write(self, line: bytes) -> None:
        # One call a line, so that a kill cannot leave a line half written.
        os.write(self._descriptor, line)
