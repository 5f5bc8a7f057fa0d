"""The next hours in words, over clock changes, and the names of zones."""

from datetime import datetime, time
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from slidepack.daemon.outlook import open_seconds
from slidepack.daemon.policy.openings import next_clock, next_openings, opening_text, zone_name
from slidepack.daemon.policy.rules import Policy, parse_window
from slidepack.daemon.policy.windows import open_spans, tonight, window_state

BERLIN = ZoneInfo("Europe/Berlin")


def _policy(*windows: tuple[str, str], closed: bool = False) -> Policy:
    return Policy(
        windows=tuple(parse_window(days, hours) for days, hours in windows),
        time_zone="Europe/Berlin",
        closed=closed,
    )


def _at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


def _texts(policy: Policy, now: float) -> list[str]:
    return [opening_text(one, now, BERLIN) for one in next_openings(policy, now, 3)]


def test_the_next_three_are_told_as_a_person_says_them() -> None:
    policy = _policy(("mon-fri", "23:00-07:00"), ("sat", "10:00-10:30"))
    assert _texts(policy, _at("2026-06-04T12:00")) == [  # a Thursday
        "tonight 23:00 to Fri 07:00, 8 h",
        "tomorrow 23:00 to Sat 07:00, 8 h",
        "Sat 10:00 to 10:30, 30 min",
    ]
    assert _texts(policy, _at("2026-06-05T06:30"))[0] == "now to 07:00, 30 min"
    rare = _policy(("mon", "08:00-09:15"))
    assert _texts(rare, _at("2026-06-02T08:00")) == [
        "Mon 08:00 to 09:15, 1 h 15 min",
        "Mon 2026-06-15 08:00 to 09:15, 1 h 15 min",
        "Mon 2026-06-22 08:00 to 09:15, 1 h 15 min",
    ]


@pytest.mark.parametrize(
    ("night", "told"),
    [
        ("2026-03-28T20:00", "tonight 23:00 to Sun 07:00, 7 h (the clocks go forward)"),
        ("2026-10-24T20:00", "tonight 23:00 to Sun 07:00, 9 h (the clocks go back)"),
        ("2026-10-23T20:00", "tonight 23:00 to Sat 07:00, 8 h"),
    ],
)
def test_a_night_in_which_the_clocks_change_is_told_as_such(night: str, told: str) -> None:
    assert _texts(_policy(("daily", "23:00-07:00")), _at(night))[0] == told


def test_always_has_no_end_and_closed_has_no_beginning() -> None:
    now = _at("2026-06-04T12:00")
    assert _texts(_policy(), now) == ["now, without an end"]
    assert _texts(_policy(closed=True), now) == []
    # Windows are kept for later and say nothing now.
    closed = _policy(("daily", "00:00-24:00"), closed=True)
    assert _texts(closed, now) == []
    assert not window_state(closed, now).open
    assert open_spans(closed, now, now + 86_400) == []
    assert open_seconds(closed, now, now + 86_400) == 0
    assert tonight(closed, now) == now


def test_until_a_clock_is_the_next_time_it_shows_that() -> None:
    policy = _policy()
    assert next_clock(policy, _at("2026-06-04T12:00"), time(23)) == _at("2026-06-04T23:00")
    assert next_clock(policy, _at("2026-06-04T23:00"), time(23)) == _at("2026-06-05T23:00")
    # Spring skips 02:30: the end of the gap is the first time that is not before it.
    assert next_clock(policy, _at("2026-03-28T23:00"), time(2, 30)) == _at("2026-03-29T03:00")


def test_a_zone_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    link = tmp_path / "localtime"
    link.symlink_to("/usr/share/zoneinfo/America/New_York")
    assert zone_name(_policy(), link) == "Europe/Berlin"
    assert zone_name(Policy(), link) == "America/New_York"
    assert zone_name(Policy(), tmp_path / "missing")
    monkeypatch.setenv("TZ", ":Asia/Kathmandu")
    assert zone_name(Policy(), link) == "Asia/Kathmandu"
