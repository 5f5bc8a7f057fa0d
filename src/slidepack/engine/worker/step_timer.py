"""Times the steps of a pack, so that the planner need not guess."""

import statistics
from collections.abc import Callable, Collection
from typing import Final

__all__ = ["StepTimer"]

_WARM_UP: Final = 3
"""Steps after a change of lanes that compile, record and allocate."""
_FIRST: Final = 10
_LATER: Final = 100
"""Steps of a report; the first one comes early, the others cost the daemon little."""


class StepTimer:
    """Reports medians of steps with the same lanes."""

    def __init__(self, report: Callable[[int, int, float, int], None]) -> None:
        """Name who is told: tokens, lanes, seconds of a step, and how many were timed."""
        self._report = report
        self._lanes: frozenset[str] = frozenset()
        self._warming = _WARM_UP
        self._wanted = _FIRST
        self._tokens: list[int] = []
        self._seconds: list[float] = []

    def record(self, lanes: Collection[str], tokens: int, seconds: float) -> None:
        """Take a step of these lanes."""
        if self._lanes != frozenset(lanes):
            self._lanes = frozenset(lanes)
            self._warming, self._wanted = _WARM_UP, _FIRST
            self._forget()
        if self._warming:
            self._warming -= 1
            return
        self._tokens.append(tokens)
        self._seconds.append(seconds)
        if len(self._seconds) < self._wanted:
            return
        self._report(
            max(1, round(statistics.mean(self._tokens))),
            len(self._lanes),
            statistics.median(self._seconds),
            len(self._seconds),
        )
        self._wanted = _LATER
        self._forget()

    def _forget(self) -> None:
        self._tokens.clear()
        self._seconds.clear()
