"""Whether the losses of a run say that it has learned."""

import math
import random
from collections.abc import Iterable

import pytest

from slidepack.engine.worker.learning import LossTrail, Movement

FALLING = [3.0 - 0.05 * step for step in range(40)]
FLAT = [3.0 + 0.2 * (-1) ** step for step in range(40)]


def _trail(losses: Iterable[float], *, whole: bool = True) -> LossTrail:
    trail = LossTrail((), (), whole=whole)
    for loss in losses:
        trail.add(loss)
    return trail


@pytest.mark.parametrize(
    ("losses", "fell"),
    [
        (FALLING, True),
        (FALLING[:4], True),
        (FALLING[:3], None),
        ([], None),
        (FLAT, False),
        (list(reversed(FALLING)), False),
        ([3.0] * 10, False),
        ([math.nan] * 40, None),
        ([3.0, 3.0, 3.0, 2.9, 2.9, 2.9], True),
        ([4.0, 2.0, 3.0, 3.9, 2.0, 2.9], False),
    ],
)
def test_a_loss_fell_where_it_fell_by_more_than_its_noise(
    losses: list[float], fell: bool | None
) -> None:
    assert _trail(losses).fell(len(losses)) is fell


def test_the_ends_of_a_long_run_are_what_counts() -> None:
    noise = random.Random(0)
    losses = [3.0 - 2e-4 * step + noise.gauss(0.0, 0.1) for step in range(5000)]
    trail = _trail(losses)
    assert (trail.first, trail.last) == (losses[:20], losses[-20:])
    assert trail.fell(5000)


@pytest.mark.parametrize("cut", [0, 3, 20, 35, 40])
def test_a_resumed_run_has_the_evidence_of_the_whole(cut: int) -> None:
    whole = _trail(FALLING)
    before = _trail(FALLING[:cut])
    resumed = LossTrail(tuple(before.first), tuple(before.last), whole=True)
    for loss in FALLING[cut:]:
        resumed.add(loss)
    assert (resumed.first, resumed.last) == (whole.first, whole.last)
    assert resumed.describe(40) == whole.describe(40)


@pytest.mark.parametrize(
    ("losses", "before", "after", "movement"),
    [
        (FLAT, 3.0, 3.0, "identical"),
        (FLAT, 3.0, 3.0 * (1 + 5e-7), "identical"),
        (FLAT, 0.0, 0.0, "identical"),
        (FLAT, 3.0, 3.0 * (1 - 1e-5), "learned"),
        (FLAT, 3.0, 3.1, "unmoved"),
        (FLAT, None, None, "unmoved"),
        (FLAT, 3.0, None, "unmoved"),
        (FALLING, 3.0, 3.0, "learned"),
        (FALLING, 3.0, 3.5, "learned"),
        (FALLING, None, None, "learned"),
        ([2.0], None, None, "learned"),
        ([2.0], 3.0, 3.5, "learned"),
        ([2.0], 3.0, 3.0, "identical"),
    ],
)
def test_both_losses_say_what_moved(
    losses: list[float], before: float | None, after: float | None, movement: Movement
) -> None:
    assert _trail(losses).movement(len(losses), before, after) == movement


def test_losses_from_the_middle_of_a_run_say_nothing() -> None:
    """As after a checkpoint of an older version."""
    trail = _trail(FLAT, whole=False)
    assert trail.fell(80) is None
    assert trail.describe(80) == ""
    assert trail.movement(80, 3.0, 3.1) == "learned"
    assert trail.movement(80, 3.0, 3.0) == "identical"
