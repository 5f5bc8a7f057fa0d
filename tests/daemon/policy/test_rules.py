"""What a policy may say, in the words that it is refused with."""

from typing import Any

import msgspec
import pytest

from slidepack.daemon.policy.patterns import NamePatterns, ProgramPatterns
from slidepack.daemon.policy.rules import (
    WEEKDAYS,
    Policy,
    Window,
    format_days,
    parse_days,
    parse_window,
)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"window": []}, "window"),
        ({"time_zone": "Europe/Atlantis"}, "time_zone"),
        ({"time_zone": "../../etc/passwd"}, "time_zone"),
        ({"time_zone": "America"}, "time_zone"),
        ({"finish_within_minutes": -1.0}, "finish_within_minutes"),
        ({"foreign_vram_mb": -1}, "foreign_vram_mb"),
        ({"foreign_gpu_percent": 101}, "foreign_gpu_percent"),
        ({"max_gpu_celsius": 30}, "max_gpu_celsius"),
        ({"cool_by_celsius": 0}, "cool_by_celsius"),
        ({"reserve_vram_mb": -5}, "reserve_vram_mb"),
        ({"pause_after_seconds": -5}, "pause_after_seconds"),
        ({"resume_after_seconds": 1e9}, "resume_after_seconds"),
        ({"exclusive_apps": ["*"]}, "exclusive_apps"),
        ({"exclusive_apps": ["cmd:*"]}, "exclusive_apps"),
        ({"exclusive_apps": [""]}, "exclusive_apps"),
        ({"exclusive_apps": ["a\nb"]}, "exclusive_apps"),
        ({"exclusive_apps": ["x" * 301]}, "exclusive_apps"),
        ({"ignored_processes": ["?*"]}, "ignored_processes"),
        ({"detect_games": "maybe"}, "detect_games"),
        ({"windows": [{"days": ["mon"], "start": "23:00"}]}, "end"),
        ({"windows": [{"days": [], "start": "23:00", "end": "07:00"}]}, "days"),
        ({"windows": [{"days": ["mon", "mon"], "start": "23:00", "end": "07:00"}]}, "days"),
        ({"windows": [{"days": ["someday"], "start": "23:00", "end": "07:00"}]}, "days"),
        ({"windows": [{"days": ["mon"], "start": "24:00", "end": "07:00"}]}, "start"),
        ({"windows": [{"days": ["mon"], "start": "7:00", "end": "08:00"}]}, "start"),
        ({"windows": [{"days": ["mon"], "start": "07:00", "end": "24:01"}]}, "end"),
        ({"windows": [{"days": ["mon"], "start": "07:00", "end": "٠٨:00"}]}, "end"),
    ],
)
def test_an_invalid_policy_is_refused_with_the_field_named(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=named):
        msgspec.json.decode(msgspec.json.encode(fields), type=Policy)


def test_the_defaults_survive_the_database_and_leave_a_desktop_alone() -> None:
    policy = Policy()
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy
    ignored = NamePatterns(policy.ignored_processes)
    for name in ("Xorg", "gnome-shell", "kwin_wayland", "firefox-bin", "chromium", "Discord"):
        assert ignored.match(name), name
    for name in ("cs2", "eldenring.exe", "python3", "ollama", "blender"):
        assert not ignored.match(name), name


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("mon-fri", ("mon", "tue", "wed", "thu", "fri")),
        ("sat,sun", ("sat", "sun")),
        ("Fri-Mon", ("mon", "fri", "sat", "sun")),
        ("Wednesday", ("wed",)),
        ("mon, wed-thu", ("mon", "wed", "thu")),
        ("daily", WEEKDAYS),
        ("mon-sun", WEEKDAYS),
    ],
)
def test_days_are_read_as_people_write_them(text: str, days: tuple[str, ...]) -> None:
    assert parse_days(text) == days
    assert parse_days(format_days(parse_days(text))) == days


@pytest.mark.parametrize(
    ("days", "hours", "said"),
    [
        ("monkey", "23:00-07:00", "names no days"),
        ("mo", "23:00-07:00", "names no days"),
        ("mon", "23:00", "no span of hours"),
        ("mon", "25:00-07:00", "start is '25:00'"),
        ("mon", "23:00-7:0", "end is '07:0'"),
    ],
)
def test_hours_that_nobody_can_mean_are_refused(days: str, hours: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_window(days, hours)


def test_hours_may_be_written_short() -> None:
    window = parse_window("sat", "9-24")
    assert window == Window(days=("sat",), start="09:00", end="24:00")
    assert window.text() == "sat 09:00-24:00"


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("cs2", True),
        ("CS*", True),
        ("cs", False),
        ("/home/*/csgo/*", True),
        ("*/csgo/cs2", True),
        ("/opt/*", False),
        ("cmd:*-dev -console*", True),
        ("cmd:cs2", False),
    ],
)
def test_patterns_are_held_against_name_path_or_command(pattern: str, fits: bool) -> None:
    patterns = ProgramPatterns((pattern,))
    path = "/home/ada/csgo/cs2"
    assert patterns.match(("cs2",), (path,), f"{path} -dev -console -novid") is fits
