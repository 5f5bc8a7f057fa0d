import math

from slidepack.daemon.planner.hours import Hours
from slidepack.daemon.planner.tasks import Window

NIGHTS = (Window(begin=100.0, end=200.0), Window(begin=500.0, end=600.0))


def test_without_windows_every_second_is_open() -> None:
    hours = Hours((), 50.0)
    assert hours.open_seconds(80.0) == 30.0
    assert hours.ends(30.0) == 80.0
    assert hours.total == math.inf


def test_closed_hours_do_not_count() -> None:
    hours = Hours(NIGHTS, 0.0)
    assert [hours.open_seconds(t) for t in (50.0, 150.0, 300.0, 550.0, 999.0)] == [
        *(0.0, 50.0, 100.0, 150.0, 200.0)
    ]
    assert hours.total == 200.0
    assert hours.breaks == [100.0]


def test_what_ends_with_a_window_ends_there_and_what_follows_begins_in_the_next() -> None:
    hours = Hours(NIGHTS, 0.0)
    assert hours.ends(100.0) == 200.0
    assert hours.begins(100.0) == 500.0
    assert hours.begins(0.0) == 100.0


def test_work_is_cut_at_the_end_of_a_window() -> None:
    hours = Hours(NIGHTS, 0.0)
    assert hours.pieces(90.0, 130.0) == [(190.0, 200.0), (500.0, 530.0)]


def test_a_window_that_is_open_now_counts_from_now_and_those_that_touch_are_one() -> None:
    hours = Hours((*NIGHTS, Window(begin=200.0, end=260.0)), 180.0)
    assert hours.spans == [(180.0, 260.0), (500.0, 600.0)]
    assert hours.open_seconds(520.0) == 100.0


def test_windows_that_are_over_leave_no_hour() -> None:
    hours = Hours(NIGHTS, 700.0)
    assert hours.total == 0.0
    assert hours.begins(0.0) == math.inf
