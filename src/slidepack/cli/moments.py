"""Moments and durations as people type them: 23:00, 2026-12-24T18:30, 90m."""

import re
from datetime import datetime, timedelta
from typing import Final

import typer

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_moment(text: str, now: datetime) -> float:
    """Return the unix time in seconds of a time of day, or of a date and time.

    A time of day is the next one. What names no zone is in this machine's.

    Args:
        text: as typed.
        now: local wall time, without a zone.

    Raises:
        typer.BadParameter: it is neither.
    """
    try:
        if re.fullmatch(r"\d{1,2}:\d{2}", text):
            hour, minute = map(int, text.split(":"))
            today = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
            # By the wall clock: tomorrow may be 23 or 25 hours away.
            moment = today if today > now else today + timedelta(days=1)
        else:
            moment = datetime.fromisoformat(text)
        # Python takes a time without a zone for local time.
        seconds = moment.timestamp()
        # One that has a zone may be out of the calendar here, where no list could show it.
        datetime.fromtimestamp(seconds)
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(
            f"{text!r} is no moment ({error}); use 23:00 or 2026-12-24T18:30"
        ) from error
    return seconds


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as 90m or 2h.

    Raises:
        typer.BadParameter: it is none.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; use 30s, 90m, 2h or 1d")
    return float(found[1]) * _SECONDS[found[2]]
