"""When the windows open next, and which zone their clock is of. Pure, but for the zone's name."""

import os
from datetime import datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.policy.rules import WEEKDAYS, Policy
from slidepack.daemon.policy.windows import (
    clock_text,
    first_instant,
    policy_zone,
    window_state,
)

__all__ = ["Opening", "next_clock", "next_openings", "opening_text", "zone_name"]

_LOCALTIME: Final = Path("/etc/localtime")
_DAY: Final = 86_400


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """A span in which training may run by the clock, in unix seconds."""

    begin: float
    """`now` where the windows are open already."""
    end: float | None
    """None where they do not close again."""


def next_openings(policy: Policy, now: float, most: int) -> tuple[Opening, ...]:
    """Return the next spans in which windows are open, the one of `now` first.

    Args:
        policy: its windows.
        now: unix seconds.
        most: how many.
    """
    found: list[Opening] = []
    at: float | None = now
    while at is not None and len(found) < most:
        state = window_state(policy, at)
        if state.open:
            found.append(Opening(begin=at, end=state.until))
        at = state.until
    return tuple(found)


def opening_text(opening: Opening, now: float, zone: tzinfo) -> str:
    """Return a span as a person says it: `tonight 23:00 to Tue 07:00, 8 h`.

    A night in which the clocks change is told as such: its hours are one more or one less.
    """
    begin = "now" if opening.begin <= now else _moment(opening.begin, now, zone)
    if opening.end is None:
        return f"{begin}, without an end"
    end = clock_text(opening.end, opening.begin, zone)
    return f"{begin} to {end}, {_length(opening.end - opening.begin)}{_change(opening, zone)}"


def next_clock(policy: Policy, now: float, clock: time) -> float:
    """Return the next instant at which the clock on the wall shows `clock`, in unix seconds."""
    zone = policy_zone(policy)
    day = datetime.fromtimestamp(now, zone).date()
    moments = (
        first_instant(datetime.combine(day + timedelta(days=days), clock), zone)
        for days in range(3)
    )
    return next(moment for moment in moments if moment > now)


def zone_name(policy: Policy, localtime: Path = _LOCALTIME) -> str:
    """Return the name of the windows' zone, as `Europe/Berlin`; of the system's where it has one.

    Args:
        policy: whose windows.
        localtime: where the system keeps its zone.
    """
    if policy.time_zone:
        return policy.time_zone
    given = os.environ.get("TZ", "").removeprefix(":")
    if given:
        return given
    try:
        target = os.readlink(localtime)
    except OSError:
        target = ""
    _, found, name = target.partition("zoneinfo/")
    return name if found else str(datetime.now(policy_zone(policy)).tzname() or "UTC")


def _moment(instant: float, now: float, zone: tzinfo) -> str:
    shown, today = datetime.fromtimestamp(instant, zone), datetime.fromtimestamp(now, zone)
    days = (shown.date() - today.date()).days
    if days > 1:
        weekday = WEEKDAYS[shown.weekday()].capitalize()
        return f"{weekday} {shown:%H:%M}" if days < 7 else f"{weekday} {shown:%Y-%m-%d %H:%M}"
    if days == 1:
        return f"tomorrow {shown:%H:%M}"
    return f"{'tonight' if shown.hour >= 18 else 'today'} {shown:%H:%M}"


def _length(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes >= 2 * _DAY / 60:
        return f"{seconds / _DAY:.1f} days".replace(".0", "")
    hours, rest = divmod(minutes, 60)
    parts = (f"{hours} h" if hours else "", f"{rest} min" if rest or not hours else "")
    return " ".join(filter(None, parts))


def _change(opening: Opening, zone: tzinfo) -> str:
    assert opening.end is not None
    begin = datetime.fromtimestamp(opening.begin, zone).utcoffset()
    end = datetime.fromtimestamp(opening.end, zone).utcoffset()
    if begin is None or end is None or begin == end:
        return ""
    way = "forward" if end > begin else "back"
    return f" (the clocks go {way})"
