"""How long a job goes on: by its newest steps, no surer than these are alike."""

import itertools
import random

import pytest

from slidepack.daemon.remaining import holds, remaining


def _times(*seconds: float) -> list[tuple[int, float]]:
    return list(enumerate(itertools.accumulate(seconds, initial=1000.0), start=1))


def test_steps_that_are_alike_leave_no_doubt() -> None:
    left = remaining(_times(*[2.0] * 40), 141)
    assert left is not None
    assert left.seconds == pytest.approx(200.0)
    assert left.low == pytest.approx(200.0)
    assert left.high == pytest.approx(200.0)


def test_the_band_is_wider_where_steps_differ_and_narrower_the_more_of_them_there_are() -> None:
    dice = random.Random(3)
    even = [2.0 + dice.uniform(-0.1, 0.1) for _ in range(64)]
    uneven = [2.0 + dice.uniform(-1.5, 1.5) for _ in range(64)]
    widths = []
    for seconds in (even, uneven):
        left = remaining(_times(*seconds), 100)
        assert left is not None
        assert left.low <= left.seconds <= left.high
        widths.append((left.high - left.low) / left.seconds)
    assert widths[0] < widths[1]
    far = remaining(_times(*uneven), 100_000)
    assert far is not None
    assert (far.high - far.low) / far.seconds < widths[1]


def test_a_machine_that_has_become_slower_is_not_evened_out() -> None:
    left = remaining(_times(*[1.0] * 32, *[3.0] * 32), 1_000_065)
    assert left is not None
    assert left.low == pytest.approx(1e6)
    assert left.high == pytest.approx(3e6)


def test_the_truth_is_mostly_within_the_band() -> None:
    dice = random.Random(11)
    inside = 0
    for _ in range(200):
        # Every tenth step is measured after, which takes as long as five.
        steps = [dice.uniform(0.8, 1.2) + (5.0 if step % 10 == 9 else 0.0) for step in range(400)]
        left = remaining(_times(*steps[:160]), 401)
        assert left is not None
        inside += left.low <= sum(steps[160:]) <= left.high
    assert inside >= 150


@pytest.mark.parametrize(("done", "total"), [(0, 50), (3, 50), (40, 41), (40, 20)])
def test_too_little_or_nothing_left_says_nothing(done: int, total: int) -> None:
    assert remaining(_times(*[1.0] * done), total) is None


def test_a_clock_that_was_set_back_takes_no_time_away() -> None:
    left = remaining(_times(*[1.0] * 20, -500.0, *[1.0] * 20), 100)
    assert left is not None
    assert 0.0 <= left.low <= left.seconds <= left.high


def test_a_deadline_holds_only_where_even_the_slow_end_is_in_time() -> None:
    assert holds(100.0, 50.0, 100.0) == "holds"
    assert holds(100.0, 50.0, 101.0) == "at risk"
    assert holds(100.0, 101.0, 120.0) == "missed"
