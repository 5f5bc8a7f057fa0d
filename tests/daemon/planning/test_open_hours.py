"""The policy's windows as the planner sees them."""

from datetime import UTC, datetime

from slidepack.daemon.planner.hours import Hours
from slidepack.daemon.planning.open_hours import open_hours
from slidepack.daemon.policy.rules import WEEKDAYS, Policy, Window

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC).timestamp()
"""A Monday."""
HOUR = 3600.0


def _policy(*windows: Window) -> Policy:
    return Policy(windows=windows, time_zone="UTC")


def test_without_windows_work_may_always_run() -> None:
    assert open_hours(Policy(), NOW) == ()


def test_windows_around_the_whole_week_are_none() -> None:
    assert open_hours(_policy(Window(days=WEEKDAYS, start="00:00", end="24:00")), NOW) == ()


def test_a_week_of_nights() -> None:
    found = open_hours(_policy(Window(days=WEEKDAYS, start="23:00", end="07:00")), NOW)
    assert [(w.begin - NOW, w.end - NOW) for w in found[:2]] == [
        (11 * HOUR, 19 * HOUR),
        (35 * HOUR, 43 * HOUR),
    ]
    assert len(found) == 7


def test_a_window_that_is_open_begins_now() -> None:
    policy = _policy(Window(days=("mon",), start="10:00", end="14:00"))
    found = open_hours(policy, NOW)
    assert (found[0].begin, found[0].end) == (NOW, NOW + 2 * HOUR)


def test_the_next_opening_counts_however_far_it_is() -> None:
    (only,) = open_hours(_policy(Window(days=("mon",), start="09:00", end="12:00")), NOW)
    assert only.begin == NOW + (7 * 24 - 3) * HOUR


def test_hours_are_what_the_planner_takes_for_open() -> None:
    policy = _policy(Window(days=("tue",), start="00:00", end="01:00"))
    hours = Hours(open_hours(policy, NOW), NOW)
    assert hours.open_seconds(NOW + 13 * HOUR) == HOUR
