"""Times of day over changes to and from summer time."""

from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest

from slidepack.daemon.notices.local_time import last_moment, minute_of_day, moment, quiet_until

_BERLIN = ZoneInfo("Europe/Berlin")


def _at(text: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=_BERLIN, fold=fold).timestamp()


@pytest.mark.parametrize("text", ["", "8:00", "24:00", "08:60", "08:00 ", "0800", "0\u0668:00"])
def test_only_times_of_day_are_times_of_day(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 08:00"):
        minute_of_day(text)


def test_the_last_moment_is_on_the_users_clock() -> None:
    eight = 8 * 60
    # 29 March 2026: the night has 23 hours; 25 October: 25.
    assert last_moment(_at("2026-03-29T07:59"), eight, _BERLIN) == _at("2026-03-28T08:00")
    assert last_moment(_at("2026-03-29T08:00"), eight, _BERLIN) == _at("2026-03-29T08:00")
    spring = _at("2026-03-29T08:00") - _at("2026-03-28T08:00")
    autumn = _at("2026-10-25T08:00") - _at("2026-10-24T08:00")
    assert (spring, autumn) == (23 * 3600, 25 * 3600)


def test_a_time_that_is_skipped_or_comes_twice_is_one_moment() -> None:
    half_past_two = 2 * 60 + 30
    assert moment(date(2026, 3, 29), half_past_two, _BERLIN) == _at("2026-03-29T03:30")
    first = moment(date(2026, 10, 25), half_past_two, _BERLIN)
    assert first == _at("2026-10-25T02:30", fold=0)
    # In the second pass of that hour, it is not due again.
    assert last_moment(_at("2026-10-25T02:45", fold=1), half_past_two, _BERLIN) == first


@pytest.mark.parametrize(
    ("now", "span", "ends"),
    [
        ("2026-03-28T22:59", "23:00-07:00", None),
        ("2026-03-28T23:00", "23:00-07:00", "2026-03-29T07:00"),
        ("2026-03-29T06:59", "23:00-07:00", "2026-03-29T07:00"),
        ("2026-03-29T07:00", "23:00-07:00", None),
        ("2026-03-29T13:00", "12:00-14:00", "2026-03-29T14:00"),
        ("2026-03-29T14:00", "12:00-14:00", None),
        ("2026-03-29T13:00", "-", None),
    ],
)
def test_quiet_hours_end_when_the_clock_says(now: str, span: str, ends: str | None) -> None:
    first, _, last = span.partition("-")
    expected = None if ends is None else _at(ends)
    assert quiet_until(_at(now), first, last, _BERLIN) == expected
