"""Successive halving of a sweep: lanes that are behind at a rung end there, and free their seat.

The asynchronous form (Li et al., arXiv 1810.05934), judged when a lane reaches a rung, among those
that have reached it before: the best of each `eta` go on, and the first to come always does. Rungs
are counted in samples, so lanes of different batch sizes are compared after the same data.
"""

import math
from pathlib import Path
from typing import Self

import msgspec

from slidepack.engine.contract.job import Frozen
from slidepack.engine.contract.pack import Halving
from slidepack.engine.contract.runfolder import read_struct, write_atomic

__all__ = ["Rungs"]


class _Results(Frozen, frozen=True, kw_only=True):
    """Held-out losses by rung and lane; None where they are no number."""

    rungs: tuple[dict[str, float | None], ...]
    stopped: dict[str, int]
    """Rung at which a lane was told to end."""


class Rungs:
    """What lanes measured at each rung."""

    def __init__(self, spec: Halving, path: Path) -> None:
        """Begin with no result.

        Args:
            spec: where the rungs are.
            path: file that keeps the results.
        """
        self._spec = spec
        self._path = path
        self._rungs: list[dict[str, float | None]] = []
        self._stopped: dict[str, int] = {}

    @classmethod
    def restored(cls, spec: Halving, path: Path) -> Self:
        """Go on with the results of a file, where there is one.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        rungs = cls(spec, path)
        if path.exists():
            found = read_struct(path, _Results)
            rungs._rungs = [dict(losses) for losses in found.rungs]
            rungs._stopped = dict(found.stopped)
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
        return sum(lane in rung for rung in self._rungs)

    def judge(self, lane: str, rung: int, loss: float) -> bool:
        """Record a lane's loss at a rung; return whether it goes on.

        Args:
            lane: its name.
            rung: from 1, the latest that it has reached; those it has skipped count as measured.
            loss: held-out.

        Raises:
            OSError: the disk refused; the result is known all the same.
        """
        while len(self._rungs) < rung:
            self._rungs.append({})
        value = loss if math.isfinite(loss) else None
        for index in range(rung):
            self._rungs[index].setdefault(lane, value)
        losses = sorted(_rank(other) for other in self._rungs[rung - 1].values())
        kept = max(1, len(losses) // self._spec.eta)
        goes_on = value is not None and value <= losses[kept - 1]
        if not goes_on:
            self._stopped[lane] = rung
        results = _Results(rungs=tuple(self._rungs), stopped=self._stopped)
        write_atomic(self._path, msgspec.json.encode(results))
        return goes_on

    def stopped_at(self, lane: str) -> int:
        """Return the rung at which a lane was told to end; 0 where it was not."""
        return self._stopped.get(lane, 0)

    def place(self, lane: str, rung: int) -> tuple[int, int]:
        """Return a lane's place among those measured at a rung, from 1, and their number."""
        losses = self._rungs[rung - 1]
        own = _rank(losses[lane])
        return 1 + sum(_rank(other) < own for other in losses.values()), len(losses)


def _rank(loss: float | None) -> float:
    return math.inf if loss is None else loss
