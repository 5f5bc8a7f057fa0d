"""When the windows are open. Pure: the instant and the zone are given.

A window begins at the first instant at which the clock on the wall shows its start or later, and
ends at the first at which it shows its end or later. So a start in the hour that spring skips is
the end of that gap, and of the hour that autumn repeats the first pass counts, at both ends.
"""

import os
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from slidepack.daemon.policy.rules import WEEKDAYS, Policy, Window, zone_of

_DAYS_BEHIND: Final = 9
"""A run of windows is followed back this far; what is older says nothing new."""
_DAYS_AHEAD: Final = 16
"""Two weeks: a window that one week's clock change swallows opens again in the next."""
_ENDLESS_DAYS: Final = 13
_TONIGHT: Final = time(23, 0)
_MORNING: Final = time(6, 0)
_LOCALTIME: Final = Path("/etc/localtime")


class WindowState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether training may run by the clock. Times are unix seconds."""

    open: bool
    since: float | None
    """When it opened or closed; None where it always was so."""
    until: float | None
    """When it closes or opens; None where it never does."""


def window_state(policy: Policy, now: float) -> WindowState:
    """Return whether a window is open at `now` (unix seconds), since when and until when."""
    if policy.closed or not policy.windows:
        return WindowState(open=not policy.closed, since=None, until=None)
    spans = _spans(policy, now)
    for begin, end in spans:
        if begin <= now < end:
            # Windows that touch all week long never close.
            endless = end - now > _ENDLESS_DAYS * 86400
            return WindowState(
                open=True, since=None if endless else begin, until=None if endless else end
            )
    return WindowState(
        open=False,
        since=max((end for _, end in spans if end <= now), default=None),
        until=min((begin for begin, _ in spans if begin > now), default=None),
    )


def open_spans(policy: Policy, begin: float, end: float) -> list[tuple[float, float]]:
    """Return when windows are open between two unix times; all of it where there are none."""
    found: list[tuple[float, float]] = []
    at = begin
    while at < end:
        window = window_state(policy, at)
        until = end if window.until is None else min(end, window.until)
        if window.open:
            found.append((at, until))
        at = until
    return found


def tonight(policy: Policy, now: float) -> float:
    """Return when `tonight` begins, in unix seconds; never before `now`.

    It is the next opening of a window, or `now` inside one. Where there are no windows it is
    23:00, or `now` in the night itself (before 06:00).
    """
    if policy.windows or policy.closed:
        state = window_state(policy, now)
        return now if state.open or state.until is None else state.until
    zone = policy_zone(policy)
    clock = datetime.fromtimestamp(now, zone)
    if clock.time() >= _TONIGHT or clock.time() < _MORNING:
        return now
    return first_instant(datetime.combine(clock.date(), _TONIGHT), zone)


def clock_text(instant: float, now: float, zone: tzinfo) -> str:
    """Return an instant as a person reads it now: `23:00`, `Tue 23:00` or `2026-12-24 23:00`.

    Any number gives a text: what is stored is shown in every tick, and nothing else may stop there.
    """
    shown, today = _on_calendar(instant, zone), _on_calendar(now, zone)
    if shown is None:
        return "a time that no calendar holds"
    days = None if today is None else (shown.date() - today.date()).days
    if days == 0:
        return f"{shown:%H:%M}"
    weekday = WEEKDAYS[shown.weekday()].capitalize()
    soon = days is not None and 0 < days < 7
    return f"{weekday} {shown:%H:%M}" if soon else f"{shown:%Y-%m-%d %H:%M}"


def policy_zone(policy: Policy) -> tzinfo:
    """Return the zone of the policy's windows."""
    return zone_of(policy.time_zone) or system_zone()


def system_zone(localtime: Path = _LOCALTIME) -> tzinfo:
    """Return this system's zone, read anew: a laptop travels. UTC where none is set."""
    name = os.environ.get("TZ", "").removeprefix(":")
    try:
        if name:
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # A rule such as EST5EDT4, which only the C library reads: its offset of now.
        return datetime.now().astimezone().tzinfo or UTC
    try:
        with localtime.open("rb") as file:
            return ZoneInfo.from_file(file)
    except (OSError, ValueError):
        return UTC


def _on_calendar(instant: float, zone: tzinfo) -> datetime | None:
    try:
        return datetime.fromtimestamp(instant, zone)
    except (ValueError, OverflowError, OSError):
        # The years 1 to 9999 are all that there is.
        return None


def _spans(policy: Policy, now: float) -> list[tuple[float, float]]:
    """Return when windows are open around `now`, merged and in order."""
    zone = policy_zone(policy)
    today = datetime.fromtimestamp(now, zone).date()
    found = []
    for days in range(-_DAYS_BEHIND, _DAYS_AHEAD + 1):
        day = today + timedelta(days=days)
        for window in policy.windows:
            if WEEKDAYS[day.weekday()] in window.days:
                found.append(_span(window, day, zone))
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(found):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif begin < end:
            merged.append((begin, end))
    return merged


def _span(window: Window, day: date, zone: tzinfo) -> tuple[float, float]:
    midnight = datetime.combine(day, time())
    begin = first_instant(midnight + timedelta(minutes=window.start_minute), zone)
    end = first_instant(midnight + timedelta(minutes=window.end_minute), zone)
    return begin, end


def first_instant(wall: datetime, zone: tzinfo) -> float:
    """Return the first instant at which the clock shows `wall` or later, in unix seconds."""
    first = wall.replace(tzinfo=zone, fold=0).timestamp()
    if datetime.fromtimestamp(first, zone).replace(tzinfo=None) == wall:
        return first
    # In a gap the two folds lie on either side of the clock change.
    before = int(wall.replace(tzinfo=zone, fold=1).timestamp())
    after = int(first)
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).replace(tzinfo=None) < wall:
            before = middle
        else:
            after = middle
    return float(after)
