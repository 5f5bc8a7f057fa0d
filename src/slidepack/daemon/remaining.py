"""When a running job will be done, and how sure that is. Pure."""

import itertools
import statistics
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

__all__ = ["STEPS_LOOKED_AT", "Holds", "Remaining", "holds", "remaining"]

STEPS_LOOKED_AT: Final = 320
"""The newest steps by which the rest is reckoned."""
_BLOCKS: Final = 8
_SURE: Final = 1.9
"""Standard deviations on either side that hold nine of ten, where eight stretches are known."""
_LEAST_STEPS: Final = 8
"""Below, the spread says nothing."""

Holds = Literal["holds", "at risk", "missed"]


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until a job's last step is done."""

    seconds: float
    low: float
    """It is hardly less."""
    high: float
    """It is hardly more, as long as nothing else comes to share the machine."""


def remaining(times: Sequence[tuple[int, float]], total_steps: int) -> Remaining | None:
    """Return how long a job goes on, by its newest steps.

    These are divided into stretches, and each stretch says how long the rest would take at its own
    speed. Measuring and saving fall between steps, so they are counted in, and a stretch in which
    they happened is slow. That is why it is not the spread of single steps: neighbours are alike,
    and their mean would seem far surer than it is.

    Args:
        times: steps and when they were done, in unix seconds, oldest first, of one attempt.
        total_steps: of the job.

    Returns:
        None where too little is known yet, or nothing is left.
    """
    done = len(times) - 1
    if done < _LEAST_STEPS:
        return None
    left = total_steps - times[-1][0]
    if left <= 0:
        return None
    blocks = min(_BLOCKS, done // 2)
    marks = [times[round(place * done / blocks)] for place in range(blocks + 1)]
    paces = [
        max(0.0, after[1] - before[1]) / (after[0] - before[0])
        for before, after in itertools.pairwise(marks)
    ]
    mean = max(0.0, times[-1][1] - times[0][1]) / (times[-1][0] - times[0][0])
    # How far the pace of the rest may be from that of these few stretches: both vary by chance.
    left_blocks = max(1.0, left * blocks / done)
    doubt = _SURE * statistics.stdev(paces) * (1.0 / blocks + 1.0 / left_blocks) ** 0.5
    # Whether the machine as a whole slows down does not even out; what is seen of that stays.
    halves = (statistics.fmean(paces[: blocks // 2]), statistics.fmean(paces[blocks // 2 :]))
    return Remaining(
        seconds=left * mean,
        low=left * max(0.0, min(mean - doubt, *halves)),
        high=left * max(mean + doubt, *halves),
    )


def holds(deadline: float, earliest: float, latest: float) -> Holds:
    """Return whether a deadline holds, for an end between two moments; all in unix seconds."""
    if latest <= deadline:
        return "holds"
    return "at risk" if earliest <= deadline else "missed"
