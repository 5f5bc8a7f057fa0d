"""Where packing stops paying."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["LEAST_GAIN", "Crossover", "find_crossover"]

LEAST_GAIN: Final = 0.05
"""In tokens a second, for twice the lanes: below it, packing has stopped paying."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """The answer."""

    lanes: int | None
    """The fewest from which on more lanes do not pay; None where they did to the end."""
    text: str
    """The same in words."""


def find_crossover(points: Sequence[tuple[int, float]]) -> Crossover:
    """Find the fewest lanes from which on doubling them gives less than `LEAST_GAIN`.

    Args:
        points: (lanes, tokens a second in all), fewest lanes first. Where the next has more or
            less than twice the lanes, its gain counts as that of so many doublings.
    """
    if len(points) < 2:
        return Crossover(None, "one number of lanes was measured, which shows no crossover")
    last = len(points) - 1
    while last > 0 and _doubling(points[last - 1], points[last]) < 1.0 + LEAST_GAIN:
        last -= 1
    lanes, rate = points[last]
    if last == len(points) - 1:
        return Crossover(None, f"packing still pays at {lanes} lanes, the most measured")
    more, faster = points[last + 1]
    gain = faster / rate - 1.0
    said = f"{more} lanes give {abs(gain):.1%} {'more' if gain >= 0.0 else 'fewer'} tokens a second"
    if last:
        return Crossover(lanes, f"packing stops paying at {lanes} lanes: {said}")
    if lanes == 1:
        return Crossover(lanes, f"packing does not pay at this batch and length: {said}")
    return Crossover(lanes, f"packing stops paying at {lanes} lanes, the fewest measured: {said}")


def _doubling(fewer: tuple[int, float], more: tuple[int, float]) -> float:
    """Return the factor that one doubling of the lanes gives."""
    doublings = math.log2(more[0] / fewer[0])
    return float((more[1] / fewer[1]) ** (1.0 / doublings))
