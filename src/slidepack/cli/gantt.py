"""A plan as a chart of text: a line a job, device by device."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Final

from slidepack.daemon.planner.answer import LaneSpan, Plan

__all__ = ["clock", "duration", "gantt"]

_MOST_LINES: Final = 30
"""Of a device; the rest is counted."""
_NAME_WIDTH: Final = 26
_DAY_SECONDS: Final = 86_400.0


def gantt(plan: Plan, names: Mapping[str, str], device: str, width: int) -> Iterator[str]:
    """Yield a line for each job of a device, in the order in which they begin.

    Args:
        plan: to be drawn.
        names: of the jobs, by task.
        device: key of the device.
        width: characters of the time that the whole plan takes.
    """
    spans: dict[str, list[LaneSpan]] = {}
    for span in plan.spans:
        if device in span.devices:
            spans.setdefault(span.task, []).append(span)
    end = max((span.end for span in plan.spans), default=plan.now)
    seconds = max(end - plan.now, 1e-9)
    for task in list(spans)[:_MOST_LINES]:
        found = spans[task]
        label = f"{task} {names.get(task, '')}".strip()
        if len(label) > _NAME_WIDTH:
            label = f"{label[: _NAME_WIDTH - 1]}…"
        bar = _bar(found, plan.now, seconds, width)
        ends = clock(found[-1].end, plan.now) if found[-1].ends else "not by then"
        yield f"  {label:<{_NAME_WIDTH}} |{bar}| {ends}"
    if len(spans) > _MOST_LINES:
        yield f"  and {len(spans) - _MOST_LINES} more"


def clock(instant: float, now: float) -> str:
    """Return a moment as a person reads it: `23:10`, or with the date where it is another day."""
    shown = datetime.fromtimestamp(instant)
    same_day = shown.date() == datetime.fromtimestamp(now).date()
    return f"{shown:%H:%M}" if same_day else f"{shown:%a %d %b %H:%M}"


def duration(seconds: float) -> str:
    """Return seconds as `12 s`, `3 min`, `2 h 05 min` or `3 d 4 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if seconds < 2 * _DAY_SECONDS:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def _bar(spans: list[LaneSpan], now: float, seconds: float, width: int) -> str:
    cells = [" "] * width
    for span in spans:
        first = min(width - 1, int((span.begin - now) / seconds * width))
        last = max(first + 1, round((span.end - now) / seconds * width))
        cells[first : min(last, width)] = "=" * (min(last, width) - first)
    return "".join(cells)
