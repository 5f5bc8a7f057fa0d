"""How long a run has trained, how fast it is, and how long it will take."""

import time
from dataclasses import dataclass, field
from typing import Final

__all__ = ["RunClock"]

_SPEED_WINDOW: Final = 20
"""Steps over which tokens per second are averaged."""


@dataclass(slots=True)
class RunClock:
    """Training time and recent speed; wall time of earlier attempts is carried in."""

    seconds_before: float
    started: float = field(default_factory=time.monotonic)
    recent: list[tuple[float, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Training seconds of the whole run so far."""
        return self.seconds_before + time.monotonic() - self.started

    def add_step(self, seconds: float, tokens: int) -> float:
        """Record a step and return recent tokens per second."""
        self.recent = [*self.recent[1 - _SPEED_WINDOW :], (seconds, tokens)]
        return sum(t for _, t in self.recent) / max(1e-9, sum(s for s, _ in self.recent))

    def eta_seconds(self, steps_left: int) -> float:
        """Return the expected seconds of the remaining steps."""
        return steps_left * sum(s for s, _ in self.recent) / max(1, len(self.recent))
