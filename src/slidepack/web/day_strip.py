"""The next hours on a strip: when training may run, when it is planned to, and when it is done.

Pure: the instants and the zone are given.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Final

from slidepack.daemon.planner.answer import Plan
from slidepack.daemon.policy.windows import clock_text

__all__ = ["DayStrip", "Mark", "Stretch", "day_strip"]

WIDTH: Final = 960
"""Of the strip, in its own units: forty an hour."""
_HOURS: Final = 24
_HOUR_SECONDS: Final = 3600.0
_LABEL_HOURS: Final = 3
_LEAST: Final = 3
_MOST_TOLD: Final = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A time on the strip."""

    x: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """An hour that is written below the strip."""

    percent: float
    """Of the strip's width."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DayStrip:
    """Twenty-four hours, of which the first has begun."""

    open: tuple[Stretch, ...]
    """When training may run by the clock."""
    busy: tuple[Stretch, ...]
    """When the plan has jobs train."""
    marks: tuple[Mark, ...]
    now: int
    done: int | None
    """Where the queue is done; None where that is later, or nobody knows."""
    words: tuple[str, ...]
    """The same in sentences."""


def day_strip(
    now: float, zone: tzinfo, spans: Sequence[tuple[float, float]], plan: Plan | None
) -> DayStrip:
    """Draw the hours from the one that has begun.

    Args:
        now: unix seconds.
        zone: whose hours are written.
        spans: when windows are open from then on, in order, as `open_spans` tells.
        plan: the newest plan; None where there is none.
    """
    begin = hour_begin(now, zone)
    trains = _merged((span.begin, span.end) for span in plan.spans) if plan else []
    done = max((end for _, end in trains if end > now), default=None)
    on_strip = done is not None and done < begin + _HOURS * _HOUR_SECONDS
    return DayStrip(
        open=_drawn(begin, spans),
        busy=_drawn(begin, trains),
        marks=tuple(_marks(begin, zone)),
        now=_x(begin, now),
        done=_x(begin, done) if done is not None and on_strip else None,
        words=tuple(_words(now, zone, spans, done)),
    )


def hour_begin(now: float, zone: tzinfo) -> float:
    """Return when the hour on the wall began, in unix seconds."""
    clock = datetime.fromtimestamp(now, zone)
    return now - clock.minute * 60 - clock.second - clock.microsecond / 1e6


def strip_end(now: float, zone: tzinfo) -> float:
    """Return when a strip that is drawn now ends, in unix seconds."""
    return hour_begin(now, zone) + _HOURS * _HOUR_SECONDS


def _x(begin: float, instant: float) -> int:
    share = (instant - begin) / (_HOURS * _HOUR_SECONDS)
    return round(min(max(share, 0.0), 1.0) * WIDTH)


def _drawn(begin: float, spans: Iterable[tuple[float, float]]) -> tuple[Stretch, ...]:
    end = begin + _HOURS * _HOUR_SECONDS
    return tuple(
        Stretch(x=_x(begin, since), width=max(_LEAST, _x(begin, until) - _x(begin, since)))
        for since, until in spans
        if until > begin and since < end
    )


def _merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _marks(begin: float, zone: tzinfo) -> Iterable[Mark]:
    # Each real hour is asked what the wall shows: a day that loses or repeats one stays true.
    for number in range(1, _HOURS):
        instant = begin + number * _HOUR_SECONDS
        clock = datetime.fromtimestamp(instant, zone)
        if clock.hour % _LABEL_HOURS == 0 and clock.minute == 0:
            yield Mark(percent=round(100 * number / _HOURS, 2), text=f"{clock:%H}")


def _words(
    now: float, zone: tzinfo, spans: Sequence[tuple[float, float]], done: float | None
) -> Iterable[str]:
    end = strip_end(now, zone)
    if not spans:
        yield "No window opens in the next 24 hours."
    elif spans[0][0] <= now and spans[0][1] >= end:
        yield "Training may run at any hour."
    else:
        told = [_told(now, end, zone, *span) for span in spans[:_MOST_TOLD]]
        more = " …" if len(spans) > _MOST_TOLD else "."
        yield f"Training may run {', '.join(told)}{more}"
    if done is not None:
        yield f"By the plan the queue is done {clock_text(done, now, zone)}."


def _told(now: float, end: float, zone: tzinfo, since: float, until: float) -> str:
    begins, ends = clock_text(since, now, zone), clock_text(until, now, zone)
    if since <= now:
        return f"until {ends}"
    # What is cut at the strip's end may well go on behind it.
    return f"from {begins} on" if until >= end else f"{begins} to {ends}"
