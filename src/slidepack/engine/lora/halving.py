"""Successive halving of a sweep: lanes that are behind at a rung end there, and free their seat.

The asynchronous form (Li et al., arXiv 1810.05934), judged when a lane reaches a rung, among those
that have reached it before: the best of each `eta` go on, and the first to come always does. Rungs
are counted in samples, so lanes of different batch sizes are compared after the same data.
"""

import contextlib
import fcntl
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from slidepack.engine.contract.runfolder import read_struct, write_atomic
from slidepack.engine.contract.sweep import Halving, RungResults

__all__ = ["Rungs"]


class Rungs:
    """What the lanes of a sweep measured at each rung, in a file that all their workers share.

    What this object knows is as of the last reading or judgement. Of a lane that only its own
    worker judges, that is always the truth.
    """

    def __init__(self, spec: Halving, path: Path) -> None:
        """Begin with no result.

        Args:
            spec: where the rungs are.
            path: file that keeps the results.
        """
        self._spec = spec
        self._path = path
        self._results = RungResults()

    @classmethod
    def restored(cls, spec: Halving, path: Path) -> Self:
        """Go on with the results of a file, where there is one.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        rungs = cls(spec, path)
        rungs._results = rungs._read()
        return rungs

    def reached(self, samples: int) -> int:
        """Return how many rungs are at or below this number of samples."""
        count, at = 0, self._spec.first_samples
        while at <= samples:
            count += 1
            at *= self._spec.eta
        return count

    def measured(self, lane: str) -> int:
        """Return how many rungs a lane has been judged at."""
        return sum(lane in rung for rung in self._results.rungs)

    def judge(self, lane: str, rung: int, loss: float) -> bool:
        """Record a lane's loss at a rung, for every worker to see; return whether it goes on.

        Args:
            lane: its name.
            rung: from 1, the latest that it has reached; those it has skipped count as measured.
            loss: held-out.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
            OSError: the disk refused; nothing is recorded.
        """
        value = loss if math.isfinite(loss) else None
        with self._locked():
            found = self._read()
            rungs = [dict(losses) for losses in found.rungs]
            rungs += [{} for _ in range(rung - len(rungs))]
            for losses in rungs[:rung]:
                losses.setdefault(lane, value)
            goes_on = value is not None and value <= self._bar(rungs[rung - 1])
            stopped = found.stopped if goes_on else found.stopped | {lane: rung}
            results = RungResults(rungs=tuple(rungs), stopped=stopped)
            write_atomic(self._path, msgspec.json.encode(results))
        self._results = results
        return goes_on

    def stopped_at(self, lane: str) -> int:
        """Return the rung at which a lane was told to end; 0 where it was not."""
        return self._results.stopped.get(lane, 0)

    def place(self, lane: str, rung: int) -> tuple[int, int]:
        """Return a lane's place among those measured at a rung, from 1, and their number."""
        losses = self._results.rungs[rung - 1]
        own = _rank(losses[lane])
        return 1 + sum(_rank(other) < own for other in losses.values()), len(losses)

    def _bar(self, losses: dict[str, float | None]) -> float:
        """Return the highest loss with which one goes on."""
        ordered = sorted(map(_rank, losses.values()))
        return ordered[max(1, len(ordered) // self._spec.eta) - 1]

    def _read(self) -> RungResults:
        return read_struct(self._path, RungResults) if self._path.exists() else RungResults()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep the other workers of the sweep out; a worker that dies gives the lock back."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Not the file itself: that one is replaced by each judgement.
        lock = self._path.with_name(f"{self._path.name}.lock")
        descriptor = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _rank(loss: float | None) -> float:
    return math.inf if loss is None else loss
