"""Writes how far an export is, one JSON object a line, a few a second at most."""

import os
import time
from collections.abc import Callable
from typing import Final

from slidepack.engine.export.contract import (
    ExportFailed,
    ExportProgress,
    ExportResult,
    Stage,
    encode_line,
)

__all__ = ["Reporter"]

_INTERVAL_SECONDS: Final = 0.2


class Reporter:
    """Writes lines to a pipe or a file."""

    def __init__(self, descriptor: int) -> None:
        """Write to an open descriptor, which stays its owner's."""
        self._descriptor = descriptor
        self._stage: Stage | None = None
        self._written_at = 0.0

    def show(self, stage: Stage, done: int, total: int) -> None:
        """Write how far a stage is; its first and last figures always, others now and then.

        Raises:
            OSError: nobody reads it any more, or the disk refused.
        """
        now = time.monotonic()
        due = now - self._written_at >= _INTERVAL_SECONDS
        if stage != self._stage or due or done == total:
            self._stage, self._written_at = stage, now
            self._write(encode_line(ExportProgress(stage=stage, done=done, total=total)))

    def counter(self, stage: Stage, total: int) -> Callable[[int], None]:
        """Start a stage of `total` bytes and return the function that adds to what is done."""
        done = 0

        def add(count: int) -> None:
            nonlocal done
            done += count
            self.show(stage, done, total)

        self.show(stage, 0, total)
        return add

    def layers(self, stage: Stage) -> Callable[[int, int], None]:
        """Return the function that takes layers done and layers in all."""
        return lambda done, total: self.show(stage, done, total)

    def end(self, line: ExportResult | ExportFailed) -> None:
        """Write the outcome.

        Raises:
            OSError: nobody reads it any more, or the disk refused.
        """
        self._write(encode_line(line))

    def _write(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._descriptor, line) :]
