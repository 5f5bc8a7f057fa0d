"""The plan as its page draws it: bars in thousandths of its time, words for the rest. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slidepack.daemon.planner.answer import LaneSpan, Plan, TaskPlan
from slidepack.daemon.planning.picture import job_of
from slidepack.daemon.planning.planned_queue import PlannedQueue
from slidepack.web.format import duration

__all__ = ["Bar", "PlanDevice", "PlanRow", "PlanView", "WaitingRow", "plan_view"]

WIDTH: Final = 1000
"""Of a chart, in its own units."""
_LEAST_BAR: Final = 4
_MOST_ROWS: Final = 40
_MOST_WAITING: Final = 100
_MOST_TICKS: Final = 6
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_STEPS: Final = (
    *(5, 10, 30),
    *(_MINUTE, 5 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 2 * _HOUR, 4 * _HOUR, 8 * _HOUR),
    *(_DAY, 2 * _DAY, 7 * _DAY),
)
"""Seconds that may lie between two marks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A time in which a job trains."""

    x: int
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRow:
    """A job on a device."""

    job_id: int
    name: str
    bars: tuple[Bar, ...]
    begin: float
    end: float | None
    """None where it does not end in what is known of the hours."""
    late: bool
    """Whether it ends after its deadline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanDevice:
    """A device, and who trains on it."""

    key: str
    name: str
    most_lanes: int
    rows: tuple[PlanRow, ...]
    more: int
    """Jobs that are not drawn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingRow:
    """A job that does not begin now."""

    job_id: int
    name: str
    begin: float | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanView:
    """What the page shows of a plan."""

    made_at: float
    devices: tuple[PlanDevice, ...]
    begin: float
    end: float
    """Unix seconds at the two ends of the charts."""
    ticks: tuple[int, ...]
    """Where a chart has marks."""
    tick_seconds: float
    """Between two of them."""
    figures: tuple[str, ...]
    """How good it is, in sentences."""
    waiting: tuple[WaitingRow, ...]
    more_waiting: int
    """Jobs that wait and are not listed."""


def plan_view(planned: PlannedQueue, jobs: Mapping[int, str], names: Mapping[str, str]) -> PlanView:
    """Return what the page shows.

    Args:
        planned: the newest plan.
        jobs: names of the queue's jobs, by id.
        names: of the devices, by key.
    """
    plan = planned.plan
    waiting = _waiting(plan, planned.reasons, jobs)
    end = max((span.end for span in plan.spans), default=plan.now)
    seconds = max(end - plan.now, 1.0)
    scale = WIDTH / seconds
    step = next((step for step in _STEPS if seconds / step <= _MOST_TICKS), seconds)
    return PlanView(
        made_at=planned.made_at,
        devices=tuple(
            _device(plan, key, names.get(key, ""), jobs, scale) for key in plan.max_lanes
        ),
        begin=plan.now,
        end=end,
        ticks=tuple(
            round(number * step * scale) for number in range(math.floor(seconds / step) + 1)
        ),
        tick_seconds=step,
        figures=tuple(_figures(plan)),
        waiting=tuple(waiting[:_MOST_WAITING]),
        more_waiting=max(0, len(waiting) - _MOST_WAITING),
    )


def _device(plan: Plan, key: str, name: str, known: Mapping[int, str], scale: float) -> PlanDevice:
    spans: dict[int, list[LaneSpan]] = {}
    for span in plan.spans:
        number = job_of(span.task)
        if number is not None and number in known and key in span.devices:
            spans.setdefault(number, []).append(span)
    late = {task.task for task in plan.tasks if task.in_time is False}
    drawn = [
        PlanRow(
            job_id=number,
            name=known[number],
            bars=tuple(_bar(span, plan.now, scale) for span in found),
            begin=found[0].begin,
            end=found[-1].end if found[-1].ends else None,
            late=found[0].task in late,
        )
        for number, found in list(spans.items())[:_MOST_ROWS]
    ]
    return PlanDevice(
        key=key,
        name=name,
        most_lanes=plan.max_lanes[key],
        rows=tuple(drawn),
        more=max(0, len(spans) - _MOST_ROWS),
    )


def _bar(span: LaneSpan, now: float, scale: float) -> Bar:
    begin = min(WIDTH - _LEAST_BAR, round((span.begin - now) * scale))
    end = min(WIDTH, round((span.end - now) * scale))
    return Bar(x=begin, width=max(_LEAST_BAR, end - begin))


def _figures(plan: Plan) -> list[str]:
    if not plan.tasks:
        return []
    found = [f"All that can end has ended in {duration(plan.makespan_seconds)}."]
    closed = plan.makespan_seconds - plan.open_seconds
    if closed >= 60:
        found.append(f"{duration(closed)} of that are outside the windows.")
    if plan.bound_seconds > 0:
        found.append(
            f"No plan can take less than {duration(plan.bound_seconds)}; this one is at most "
            f"{plan.gap:.1%} above it."
        )
    found.append(f"One by one on each device it would take {duration(plan.one_by_one_seconds)}.")
    if plan.verdict:
        found.append(plan.verdict)
    return found


def _waiting(plan: Plan, reasons: Mapping[int, str], known: Mapping[int, str]) -> list[WaitingRow]:
    planned: dict[int | None, TaskPlan] = {job_of(task.task): task for task in plan.tasks}
    return [
        WaitingRow(
            job_id=number,
            name=known[number],
            begin=planned[number].begin if number in planned else None,
            why=why,
        )
        for number, why in reasons.items()
        if number in known
    ]
