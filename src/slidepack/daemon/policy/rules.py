"""What decides when training may run: hours, games, other users of the card, heat."""

import math
import re
from collections.abc import Sequence
from typing import Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]

WEEKDAYS: Final[tuple[Weekday, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FULL_NAMES: Final = (
    *("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
)
_MINUTES_A_DAY: Final = 24 * 60
_MAX_PATTERNS: Final = 200
_MAX_PATTERN_LENGTH: Final = 300

COMMAND_PREFIX: Final = "cmd:"
"""Begins a pattern that is held against the whole command line."""

DESKTOP_PROCESSES: Final = (
    *("Xorg", "Xwayland", "X", "gnome-shell", "gnome-*", "gsd-*", "mutter*", "kwin*", "plasma*"),
    *("krunner", "ksmserver", "sway", "Hyprland", "hypr*", "weston", "wayfire", "labwc", "niri"),
    *("river", "cosmic-*", "cinnamon*", "muffin", "marco", "xfwm4", "xfdesktop", "xfce4-*"),
    *("budgie-*", "picom", "compton", "compiz", "lightdm*", "sddm*", "gdm*", "gamescope*"),
    *("firefox*", "Web Content", "Isolated Web Co*", "GPU Process", "chrome*", "chromium*"),
    *("brave*", "msedge*", "opera*", "vivaldi*", "epiphany*", "WebKit*", "QtWebEngine*"),
    *("thunderbird*", "electron*", "code", "code-*", "codium*", "cursor", "zed*", "slack*"),
    *("Discord*", "vesktop*", "spotify*", "signal-desktop*", "telegram*", "teams*", "zoom*"),
    *("obsidian*", "steam", "steamwebhelper", "nautilus", "dolphin", "konsole", "kitty"),
    *("alacritty", "wezterm*", "ghostty", "foot", "nvidia-settings", "dwm.exe", "explorer.exe"),
)
"""What a desktop runs all day and what takes a card only a little."""


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hours of some weekdays; past midnight where `end` is not after `start`."""

    days: tuple[Weekday, ...]
    """The days on which it begins."""
    start: str
    """`HH:MM`, by the clock on the wall."""
    end: str
    """`HH:MM`, or `24:00`. The same as `start` is a whole day."""

    def __post_init__(self) -> None:
        """Refuse hours that no clock shows."""
        if not self.days:
            raise ValueError("days is empty; name at least one of " + ", ".join(WEEKDAYS))
        if len(set(self.days)) != len(self.days):
            raise ValueError(f"days names a day twice: {', '.join(self.days)}")
        _minutes("start", self.start, last=_MINUTES_A_DAY - 1)
        _minutes("end", self.end, last=_MINUTES_A_DAY)

    @property
    def start_minute(self) -> int:
        """Minutes after midnight at which it begins."""
        return _minutes("start", self.start, last=_MINUTES_A_DAY - 1)

    @property
    def end_minute(self) -> int:
        """Minutes after the midnight of its first day at which it ends; above 1440 the day after.

        An end that is not after the start is one of the next day.
        """
        end = _minutes("end", self.end, last=_MINUTES_A_DAY)
        return end if end > self.start_minute else end + _MINUTES_A_DAY

    def text(self) -> str:
        """Return it as `mon-fri 23:00-07:00`."""
        return f"{format_days(self.days)} {self.start}-{self.end}"


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When training may run. The defaults suit a desktop on which somebody plays."""

    windows: tuple[Window, ...] = ()
    """Hours in which training may run; empty is any time."""
    closed: bool = False
    """Whether no hour is open, whatever `windows` says, as on a holiday: only jobs that may run at
    any time train."""
    time_zone: str = ""
    """Of the windows, as `Europe/Berlin`; empty is the system's."""
    finish_within_minutes: float = 20.0
    """At a window's end a job that needs no longer than this may finish; others give way."""
    exclusive_apps: tuple[str, ...] = ()
    """Programs beside which nothing trains: names with `*` and `?`, case aside. A pattern with a
    `/` is held against the program's path, one that begins with `cmd:` against its command line."""
    detect_games: bool = True
    """Whether games count that Steam or GameMode started."""
    foreign_vram_mb: float = 1500.0
    """VRAM of one card that other programs may hold, in units of 1e6 bytes; 0 does not look."""
    foreign_gpu_percent: float = 30.0
    """Share of one card's time that other programs may take; 0 does not look."""
    ignored_processes: tuple[str, ...] = DESKTOP_PROCESSES
    """Programs whose use of a card never counts: names with `*` and `?`, case aside."""
    max_gpu_celsius: float = 87.0
    """Temperature of a card at which training gives way; 0 does not look."""
    cool_by_celsius: float = 10.0
    """How far below that a card must be before training goes on."""
    reserve_vram_mb: float = 0.0
    """VRAM of each card that training leaves free, in units of 1e6 bytes."""
    pause_after_seconds: float = 5.0
    """How long another program must be there before training gives way."""
    resume_after_seconds: float = 600.0
    """How long it must be gone before training goes on."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        zone_of(self.time_zone)
        _in_range("finish_within_minutes", self.finish_within_minutes, 0, 24 * 60)
        _in_range("foreign_vram_mb", self.foreign_vram_mb, 0, 10**7)
        _in_range("foreign_gpu_percent", self.foreign_gpu_percent, 0, 100)
        if self.max_gpu_celsius != 0:
            _in_range("max_gpu_celsius", self.max_gpu_celsius, 50, 120)
        _in_range("cool_by_celsius", self.cool_by_celsius, 1, 40)
        _in_range("reserve_vram_mb", self.reserve_vram_mb, 0, 10**7)
        _in_range("pause_after_seconds", self.pause_after_seconds, 0, 3600)
        _in_range("resume_after_seconds", self.resume_after_seconds, 0, 24 * 3600)
        _check_patterns("exclusive_apps", self.exclusive_apps)
        _check_patterns("ignored_processes", self.ignored_processes)


def zone_of(name: str) -> ZoneInfo | None:
    """Return a time zone by name; None for an empty one.

    Raises:
        ValueError: there is no such zone.
    """
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"time_zone is {name!r}, which this system does not know; use a name like "
            "Europe/Berlin, or leave it empty for the system's own"
        ) from error


def parse_window(days: str, hours: str) -> Window:
    """Return the window that a user wrote as `mon-fri` and `23:00-07:00`.

    Raises:
        ValueError: it is none; says what one looks like.
    """
    start, dash, end = (part.strip() for part in hours.partition("-"))
    if not dash:
        raise ValueError(f"{hours!r} is no span of hours; write it as 23:00-07:00")
    return Window(days=parse_days(days), start=_padded(start), end=_padded(end))


def parse_days(text: str) -> tuple[Weekday, ...]:
    """Return the weekdays of `mon-fri`, `sat,sun`, `fri-mon`, `daily`, in the week's order.

    Raises:
        ValueError: a part names no day.
    """
    if text.strip().lower() in ("daily", "all", "every"):
        return WEEKDAYS
    found: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.strip().partition("-")
        begin = _day_index(first, text)
        length = (_day_index(last, text) - begin) % 7 if dash else 0
        found.update((begin + offset) % 7 for offset in range(length + 1))
    return tuple(day for index, day in enumerate(WEEKDAYS) if index in found)


def format_days(days: Sequence[Weekday]) -> str:
    """Return weekdays as `mon-fri`, `sat,sun` or `daily`."""
    chosen = sorted(WEEKDAYS.index(day) for day in days)
    if len(chosen) == len(WEEKDAYS):
        return "daily"
    runs: list[list[int]] = []
    for index in chosen:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(_run_text(run) for run in runs)


def _run_text(run: list[int]) -> str:
    names = [WEEKDAYS[index] for index in run]
    return f"{names[0]}-{names[-1]}" if len(names) > 2 else ",".join(names)


def _day_index(name: str, text: str) -> int:
    given = name.strip()
    for index, day in enumerate(_FULL_NAMES):
        if len(given) >= 3 and day.startswith(given):
            return index
    raise ValueError(f"{text!r} names no days; write mon-fri, sat,sun or daily")


def _padded(text: str) -> str:
    hour, colon, minute = text.partition(":")
    return f"{hour.zfill(2)}:{minute}" if colon else f"{hour.zfill(2)}:00"


def _minutes(field: str, text: str, *, last: int) -> int:
    match = re.fullmatch(r"([0-9]{2}):([0-5][0-9])", text)
    minutes = int(match[1]) * 60 + int(match[2]) if match else last + 1
    if minutes > last:
        limit = "24:00" if last == _MINUTES_A_DAY else "23:59"
        raise ValueError(f"{field} is {text!r}; use a time from 00:00 to {limit}")
    return minutes


def _in_range(field: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{field} is {value:g}; use {low:g} to {high:g}")


def _check_patterns(field: str, patterns: tuple[str, ...]) -> None:
    if len(patterns) > _MAX_PATTERNS:
        raise ValueError(f"{field} has {len(patterns)} patterns; use at most {_MAX_PATTERNS}")
    for pattern in patterns:
        if len(pattern) > _MAX_PATTERN_LENGTH or not pattern.isprintable():
            raise ValueError(f"{field} has a pattern that is too long or not printable")
        if not pattern.removeprefix(COMMAND_PREFIX).strip(" *?/"):
            raise ValueError(f"{field} has {pattern!r}, which would match every program")
