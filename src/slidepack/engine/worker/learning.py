"""Whether a run has learned: what moved of its weights and of its losses."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Change", "LossTrail", "Movement"]

Movement = Literal["learned", "unmoved", "identical"]
"""`identical`: no loss moved by more than rounding. `unmoved`: it did not fall."""

_ENDS: Final = 20
"""Losses that are kept of the run's beginning, and of its end."""
_FEWEST: Final = 2
"""Losses of each end that tell of their noise."""
_ROUNDING: Final = 1e-6
"""Relative difference of two held-out losses that is none: they are means of many fp32 values."""


@dataclass(frozen=True, slots=True)
class Change:
    """What training did to the weights, module by module."""

    modules: int
    still: tuple[str, ...]
    """Names of the modules that training left as they were."""
    shows: bool
    """Whether anything differs in the precision of the result."""


class LossTrail:
    """The first and the last training losses of a run, over all its attempts."""

    def __init__(self, first: Sequence[float], last: Sequence[float], *, whole: bool) -> None:
        """Begin, or go on.

        Args:
            first: losses of the run's first steps so far.
            last: of its last steps.
            whole: whether these are from the run's beginning; else its losses say nothing.
        """
        self.first = list(first)
        self.last = list(last)
        self._whole = whole

    def add(self, loss: float) -> None:
        """Record a step's loss; one that is no number tells nothing."""
        if not (self._whole and math.isfinite(loss)):
            return
        if len(self.first) < _ENDS:
            self.first.append(loss)
        self.last = [*self.last[1 - _ENDS :], loss]

    def fell(self, steps: int) -> bool | None:
        """Return whether the training loss fell by more than its noise; None where none can say.

        Args:
            steps: of the run.
        """
        count = min(_ENDS, steps // 2, len(self.first))
        if count < _FEWEST:
            return None
        first, last = self.first[:count], self.last[-count:]
        noise = math.sqrt((statistics.variance(first) + statistics.variance(last)) / count)
        return statistics.fmean(first) - statistics.fmean(last) > noise

    def movement(self, steps: int, before: float | None, after: float | None) -> Movement:
        """Return what the losses say of a whole run.

        Args:
            steps: of the run.
            before: held-out loss before the first step, None where none was measured.
            after: held-out loss after the last one.
        """
        fell = self.fell(steps)
        if fell:
            return "learned"
        if before is None or after is None:
            return "learned" if fell is None else "unmoved"
        if math.isclose(before, after, rel_tol=_ROUNDING):
            return "identical"
        return "learned" if after < before or fell is None else "unmoved"

    def describe(self, steps: int) -> str:
        """Return the training losses at both ends, for the user; empty where there are none."""
        count = min(_ENDS, max(1, steps // 2), len(self.first))
        if not count:
            return ""
        first, last = statistics.fmean(self.first[:count]), statistics.fmean(self.last[-count:])
        return f"training loss {first:.4f} in the first {count} steps, {last:.4f} in the last"
