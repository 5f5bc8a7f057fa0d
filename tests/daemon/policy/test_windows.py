"""Windows against a clock that is read minute by minute, over clock changes."""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidepack.daemon.policy.rules import WEEKDAYS, Policy, Window, parse_window
from slidepack.daemon.policy.windows import clock_text, system_zone, tonight, window_state

BERLIN = ZoneInfo("Europe/Berlin")

# The clock changes in the middle of each stretch; in Kathmandu it never does.
STRETCHES = [
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 6, 1, tzinfo=UTC)),
]
_BEFORE, _AFTER = 4 * 1440, 9 * 1440


@lru_cache
def _walls(zone: str, change: datetime) -> list[tuple[int, datetime]]:
    """Return what the clock shows at each minute around a clock change."""
    first = int(change.timestamp()) - _BEFORE * 60
    info = ZoneInfo(zone)
    instants = (first + 60 * minute for minute in range(_BEFORE + _AFTER))
    return [(i, datetime.fromtimestamp(i, info).replace(tzinfo=None)) for i in instants]


def _open_minutes(windows: tuple[Window, ...], walls: list[tuple[int, datetime]]) -> set[int]:
    """Open each window when the clock first shows its start; close it when it shows its end."""
    opened: set[int] = set()
    day = walls[0][1].date()
    while day <= walls[-1][1].date():
        for window in windows:
            if WEEKDAYS[day.weekday()] not in window.days:
                continue
            midnight = datetime.combine(day, datetime.min.time())
            hour, minute = map(int, window.start.split(":"))
            start = midnight + timedelta(hours=hour, minutes=minute)
            hour, minute = map(int, window.end.split(":"))
            end = midnight + timedelta(hours=hour, minutes=minute)
            if end <= start:
                end += timedelta(days=1)
            begun = False
            for instant, wall in walls:
                begun = begun or wall >= start
                if begun and wall >= end:
                    break
                if begun:
                    opened.add(instant)
        day += timedelta(days=1)
    return opened


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


# Near the hours at which clocks change, every minute; else any.
_MINUTES = st.one_of(
    st.integers(0, 1439), st.integers(20, 240), st.sampled_from((0, 60, 90, 120, 150, 180))
)
_DAYS = st.lists(st.sampled_from(WEEKDAYS), min_size=1, max_size=7, unique=True)


@st.composite
def _windows(draw: st.DrawFn) -> tuple[Window, ...]:
    return tuple(
        Window(
            days=tuple(draw(_DAYS)),
            start=_clock(draw(_MINUTES)),
            end=draw(st.one_of(_MINUTES.map(_clock), st.just("24:00"))),
        )
        for _ in range(draw(st.integers(1, 3)))
    )


@settings(max_examples=80)
@given(st.sampled_from(STRETCHES), _windows(), st.data())
def test_windows_equal_a_clock_read_minute_by_minute(
    stretch: tuple[str, datetime], windows: tuple[Window, ...], data: st.DataObject
) -> None:
    walls = _walls(*stretch)
    opened = _open_minutes(windows, walls)
    policy = Policy(windows=windows, time_zone=stretch[0])
    # The first days lack windows that began before them; the last ones lack what comes after.
    for _ in range(6):
        index = data.draw(st.integers(_BEFORE - 36 * 60, _BEFORE + 36 * 60))
        now = walls[index][0]
        state = window_state(policy, now)
        assert state.open == (now in opened)
        later = (i for i, _ in walls[index + 1 :] if (i in opened) != state.open)
        change = next(later, None)
        if change is not None:
            assert state.until == change
        else:
            assert state.until is None or state.until > walls[-1][0]
        earlier = (i for i, _ in reversed(walls[1441:index]) if (i in opened) != state.open)
        before = next(earlier, None)
        assert before is None or state.since == before + 60


def _at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def _policy(*texts: str) -> Policy:
    windows = tuple(parse_window(*text.split(" ")) for text in texts)
    return Policy(windows=windows, time_zone="Europe/Berlin")


def test_without_windows_it_is_always_open() -> None:
    state = window_state(Policy(), 0.0)
    assert (state.open, state.since, state.until) == (True, None, None)


def test_a_night_is_past_midnight_and_belongs_to_its_first_day() -> None:
    policy = _policy("fri 23:00-07:00")
    saturday = window_state(policy, _at("2026-11-28T03:00"))
    assert (saturday.open, saturday.since) == (True, _at("2026-11-27T23:00"))
    assert saturday.until == _at("2026-11-28T07:00")
    friday = window_state(policy, _at("2026-11-27T03:00"))
    assert (friday.open, friday.until) == (False, _at("2026-11-27T23:00"))
    # The end itself is outside, the start itself inside.
    assert not window_state(policy, _at("2026-11-28T07:00")).open
    assert window_state(policy, _at("2026-11-27T23:00")).open


def test_a_start_in_the_hour_that_spring_skips_is_the_end_of_the_gap() -> None:
    state = window_state(_policy("sun 02:30-05:00"), _at("2026-03-29T01:00"))
    assert (state.open, state.until) == (False, _at("2026-03-29T03:00"))


def test_an_end_in_the_hour_that_autumn_repeats_is_the_first_pass() -> None:
    policy = _policy("sat 23:00-02:30")
    state = window_state(policy, _at("2026-10-25T01:00"))
    assert (state.open, state.until) == (True, _at("2026-10-25T02:30", fold=0))
    assert not window_state(policy, _at("2026-10-25T02:15", fold=1)).open


def test_a_window_inside_the_gap_does_not_open_until_the_next_week() -> None:
    policy = _policy("sun 02:10-02:50")
    state = window_state(policy, _at("2026-03-29T01:00"))
    assert (state.open, state.until) == (False, _at("2026-04-05T02:10"))


def test_windows_that_touch_are_one_and_a_whole_week_never_closes() -> None:
    joined = window_state(_policy("mon 09:00-12:00", "mon 12:00-18:00"), _at("2026-11-30T10:00"))
    assert joined.until == _at("2026-11-30T18:00")
    always = window_state(_policy("daily 05:00-05:00"), _at("2026-11-30T10:00"))
    assert (always.open, always.since, always.until) == (True, None, None)


@pytest.mark.parametrize(
    ("texts", "now", "expected"),
    [
        (("mon-fri 22:00-06:00",), "2026-11-30T12:00", "2026-11-30T22:00"),
        (("mon-fri 22:00-06:00",), "2026-11-30T23:30", "2026-11-30T23:30"),
        (("mon-fri 22:00-06:00",), "2026-11-28T12:00", "2026-11-30T22:00"),
        ((), "2026-11-30T12:00", "2026-11-30T23:00"),
        ((), "2026-11-30T23:30", "2026-11-30T23:30"),
        ((), "2026-12-01T03:00", "2026-12-01T03:00"),
        ((), "2026-12-01T06:00", "2026-12-01T23:00"),
    ],
)
def test_tonight(texts: tuple[str, ...], now: str, expected: str) -> None:
    assert tonight(_policy(*texts), _at(now)) == _at(expected)


@pytest.mark.parametrize(
    ("then", "text"),
    [
        ("2026-11-30T23:00", "23:00"),
        ("2026-12-01T07:00", "Tue 07:00"),
        ("2026-12-06T07:00", "Sun 07:00"),
        ("2026-12-07T07:00", "2026-12-07 07:00"),
        ("2026-11-29T07:00", "2026-11-29 07:00"),
    ],
)
def test_an_instant_is_told_as_a_person_reads_it(then: str, text: str) -> None:
    assert clock_text(_at(then), _at("2026-11-30T12:00"), BERLIN) == text


def test_the_systems_zone_is_read_anew_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zones = next(p for p in (Path("/usr/share/zoneinfo"),) if p.is_dir())
    localtime = tmp_path / "localtime"
    monkeypatch.delenv("TZ", raising=False)
    summer = datetime(2026, 7, 1, 12)
    for name, hours in (("Europe/Berlin", 2.0), ("Asia/Kathmandu", 5.75)):
        localtime.unlink(missing_ok=True)
        localtime.symlink_to(zones / name)
        assert summer.replace(tzinfo=system_zone(localtime)).utcoffset() == timedelta(hours=hours)
    assert system_zone(tmp_path / "none").utcoffset(summer) == timedelta(0)
    monkeypatch.setenv("TZ", ":America/New_York")
    assert summer.replace(tzinfo=system_zone(localtime)).utcoffset() == timedelta(hours=-4)


@given(
    st.floats(allow_nan=True, allow_infinity=True),
    st.floats(allow_nan=True, allow_infinity=True) | st.just(1_796_000_000.0),
)
def test_every_number_has_a_text(instant: float, now: float) -> None:
    for zone in (UTC, BERLIN, ZoneInfo("Pacific/Kiritimati"), ZoneInfo("Etc/GMT+12")):
        assert clock_text(instant, now, zone)


@pytest.mark.parametrize("instant", [1.8e12, 1e300, -1e18, float("inf"), float("nan")])
def test_what_no_calendar_holds_is_called_so(instant: float) -> None:
    assert clock_text(instant, 1_796_000_000.0, BERLIN) == "a time that no calendar holds"
    # Beside a clock that shows nothing, a moment still has its date.
    assert clock_text(1_796_000_000.0, instant, UTC) == "2026-11-30 00:53"
