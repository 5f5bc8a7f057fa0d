"""Moments and durations as people type them."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import typer

from slidepack.cli.moments import parse_duration, parse_moment

_NOW = datetime(2026, 11, 30, 22, 15, 30)


def test_a_time_of_day_is_the_next_one() -> None:
    assert parse_moment("23:00", _NOW) == datetime(2026, 11, 30, 23, 0).timestamp()
    assert parse_moment("22:15", _NOW) == datetime(2026, 12, 1, 22, 15).timestamp()
    assert parse_moment("7:00", _NOW) == datetime(2026, 12, 1, 7, 0).timestamp()


def test_a_date_keeps_its_zone_or_takes_this_machines() -> None:
    assert parse_moment("2026-12-24T18:30", _NOW) == datetime(2026, 12, 24, 18, 30).timestamp()
    utc = parse_moment("2026-12-24T18:30+00:00", _NOW)
    assert parse_moment("2026-12-24T18:30+02:00", _NOW) == utc - timedelta(hours=2).seconds


@pytest.mark.parametrize("text", ["", "25:00", "noon", "12:60", "2026-13-01", "1e9"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no moment"):
        parse_moment(text, _NOW)


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    "text", ["0001-01-01", "0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00", "0000-01-01"]
)
def test_a_moment_that_no_calendar_here_has_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no moment"):
        parse_moment(text, _NOW)


def test_durations_are_seconds() -> None:
    given = {"30s": 30, "90m": 5400, "90min": 5400, "2h": 7200, "1.5 h": 5400, "1d": 86400}
    assert {text: parse_duration(text) for text in given} == given
    for text in ("", "2", "h", "-1h", "2 weeks"):
        with pytest.raises(typer.BadParameter, match="no duration"):
            parse_duration(text)
