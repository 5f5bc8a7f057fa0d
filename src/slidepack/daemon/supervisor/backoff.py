"""How long a job waits before it is tried again. Pure: no clock."""

from collections.abc import Sequence
from typing import Final

from slidepack.daemon.store.attempts import AttemptRecord

_GROWTH: Final = 6.0
_LONGEST_SECONDS: Final = 3600.0


def fruitless(attempts: Sequence[AttemptRecord], states: frozenset[str]) -> int:
    """Return how many of the last attempts ended so and made no new step.

    Args:
        attempts: of one job, oldest first.
        states: in which they count; any other ends the series, and so does a new step.
    """
    best = count = 0
    for attempt in attempts:
        gained = (attempt.last_step or 0) > best
        best = max(best, attempt.last_step or 0)
        count = 0 if gained or attempt.state not in states else count + 1
    return count


def wait_seconds(count: int, first_seconds: float) -> float:
    """Return how long to wait after so many fruitless attempts in a row: 5 s, 30 s, 3 min …

    Args:
        count: of the attempts; after none there is no wait.
        first_seconds: after the first one.
    """
    if count < 1:
        return 0.0
    return min(_LONGEST_SECONDS, first_seconds * _GROWTH ** (count - 1))
