"""Times of day on the user's clock, over changes to and from summer time.

`zone` is None for the zone of this machine everywhere here.
"""

import re
from datetime import date, datetime, timedelta, tzinfo
from typing import Final

_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


def minute_of_day(text: str) -> int:
    """Return a time such as 23:30 as minutes after midnight.

    Raises:
        ValueError: the text is no such time.
    """
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no time of day; write it as 08:00")
    return int(found[1]) * 60 + int(found[2])


def local_date(now: float, zone: tzinfo | None) -> date:
    """Return the day on the user's calendar at a unix time in seconds."""
    return datetime.fromtimestamp(now, zone).date()


def moment(day: date, minute: int, zone: tzinfo | None) -> float:
    """Return the unix time of a time of day, in seconds.

    A time that the change to summer time skips is as much later; of one that comes twice, the
    first counts.
    """
    return datetime(
        day.year, day.month, day.day, minute // 60, minute % 60, tzinfo=zone
    ).timestamp()


def last_moment(now: float, minute: int, zone: tzinfo | None) -> float:
    """Return the newest time of day `minute` that is not after `now`, as unix seconds."""
    today = local_date(now, zone)
    at = moment(today, minute, zone)
    return at if at <= now else moment(today - timedelta(days=1), minute, zone)


def quiet_until(now: float, first: str, last: str, zone: tzinfo | None) -> float | None:
    """Return when the quiet hours that hold `now` end, as unix seconds; None outside of them.

    Args:
        now: unix time in seconds.
        first: time of day at which they begin; empty where there are none.
        last: time of day at which they end; before `first` where they span midnight.
        zone: the user's time zone.
    """
    if not first or not last:
        return None
    begin, end = minute_of_day(first), minute_of_day(last)
    clock = datetime.fromtimestamp(now, zone)
    minute = clock.hour * 60 + clock.minute
    inside = begin <= minute < end if begin < end else minute >= begin or minute < end
    if not inside:
        return None
    ends = moment(clock.date(), end, zone)
    return ends if ends > now else moment(clock.date() + timedelta(days=1), end, zone)
