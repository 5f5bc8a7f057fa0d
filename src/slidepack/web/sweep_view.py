"""A sweep as its page draws it: settings against losses, rungs, and how far it is. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slidepack.daemon.states import TERMINAL
from slidepack.daemon.sweeps.results import MemberRow, SweepTable
from slidepack.engine.contract.sweep import RungResults

__all__ = ["Dot", "Rung", "Scatter", "SweepView", "Tick", "metric_of", "sweep_view", "written"]

WIDTH: Final = 320
HEIGHT: Final = 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 30
"""Margins for what is written beside a plot."""
_LOG_RATIO: Final = 8.0
"""Between the ends of a log axis, at least."""
_MOST_TICKS: Final = 6
_LEAST_GAP: Final = 38
"""Between the middles of two words below a plot."""
_TRIED: Final = 3
"""Members that are offered to be asked beside one another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """A mark of an axis."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A member in a plot."""

    job_id: int
    x: float
    y: float
    title: str
    kind: str
    """`best`, `done`, or `going` for one whose loss still changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    """One setting against what members are ranked by."""

    name: str
    log: bool
    dots: tuple[Dot, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    words: str
    """What it shows, for those who do not see it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """How members were judged after so many samples."""

    number: int
    samples: int
    judged: int
    stopped: int
    best: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepView:
    """What the page shows of a sweep."""

    table: SweepTable
    metric: str
    """What members are ranked by, in words."""
    scatters: tuple[Scatter, ...]
    rungs: tuple[Rung, ...]
    states: tuple[tuple[str, int], ...]
    steps: int
    """Done, of all members that go to their end."""
    total_steps: int
    going: int
    """Members that have not ended."""
    tried: tuple[int, ...]
    """The best completed members, the best one first."""
    end: float | None
    """Of the last member by the plan, in unix seconds; None where no plan tells."""


def sweep_view(
    table: SweepTable, rungs: RungResults, ends: Mapping[int, float | None]
) -> SweepView:
    """Return what the page shows.

    Args:
        table: the sweep with its members.
        rungs: what was judged.
        ends: when jobs end by the plan of the queue, in unix seconds.
    """
    members = table.members
    going = [row for row in members if row.state not in TERMINAL]
    planned = [ends.get(row.job_id) for row in going]
    known = [end for end in planned if end is not None]
    done = [row for row in members if row.state == "completed" and row.loss is not None]
    done.sort(key=lambda row: (row.loss or 0.0, row.job_id))
    # A member that was ended early has no more to do.
    whole = [row for row in members if row in going or row.state == "completed"]
    total = [row.step if row.state == "completed" else row.total_steps for row in whole]
    typical = max(total, default=0)
    return SweepView(
        table=table,
        metric=_METRICS[table.by],
        scatters=tuple(
            found for name in table.differ if (found := _scatter(name, table)) is not None
        ),
        rungs=tuple(_rungs(table, rungs)),
        states=tuple(sorted(Counter(row.state for row in members).items())),
        steps=sum(row.step for row in whole),
        # How many steps a member has is known once it has begun.
        total_steps=sum(steps or typical for steps in total),
        going=len(going),
        tried=tuple(row.job_id for row in done[:_TRIED]),
        end=max(known) if known and len(known) == len(going) else None,
    )


_METRICS: Final = {
    "selection": "held-out loss",
    "test": "test loss",
    "test-score": "right answers on test rows",
}


def metric_of(row: MemberRow, by: str) -> float | None:
    """Return what a member is ranked by."""
    if by == "selection":
        return row.loss
    if by == "test":
        return row.test_loss
    return None if row.test_score is None else row.test_score.value


def written(value: object) -> str:
    """Return a setting as tables show it."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (tuple, list)):
        return ", ".join(str(one) for one in value)
    return str(value)


def _scatter(name: str, table: SweepTable) -> Scatter | None:
    found = [
        (row, value)
        for row in table.members
        if (value := metric_of(row, table.by)) is not None and math.isfinite(value)
    ]
    if not found:
        return None
    settings = [row.settings[name] for row, _ in found]
    place, x_ticks, log = _across(settings)
    values = [value for _, value in found]
    rise, y_ticks = _up(values)
    best = table.best.job_id if table.best else None
    dots = [
        Dot(
            job_id=row.job_id,
            x=round(place(row.settings[name]), 1),
            y=round(rise(value), 1),
            title=f"{name} {written(row.settings[name])}: {value:.4g} (job {row.job_id})",
            kind="best" if row.job_id == best else "done" if row.state in TERMINAL else "going",
        )
        for row, value in found
    ]
    ends = sorted(zip(values, (written(one) for one in settings), strict=True))
    first, last = (ends[-1], ends[0]) if table.by == "test-score" else (ends[0], ends[-1])
    return Scatter(
        name=name,
        log=log,
        dots=tuple(sorted(dots, key=lambda dot: dot.kind == "best")),
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        words=(
            f"{_METRICS[table.by].capitalize()} by {name}, of {len(found)} members: best "
            f"{first[0]:.4g} at {first[1]}, worst {last[0]:.4g} at {last[1]}. The table has all."
        ),
    )


def _across(settings: Sequence[Any]) -> tuple[Callable[[Any], float], tuple[Tick, ...], bool]:
    """Return where a setting's values stand, the marks below them, and whether the axis is log."""
    left, right = _LEFT + 10.0, WIDTH - _RIGHT - 10.0
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in settings)
    if not numbers:
        kinds = sorted({written(one) for one in settings})
        gap = (right - left) / max(1, len(kinds))
        places = {kind: left + gap * (number + 0.5) for number, kind in enumerate(kinds)}
        marks = [Tick(at=round(at, 1), text=_short(kind)) for kind, at in places.items()]
        return lambda value: places[written(value)], _spaced(marks), False
    low, high = float(min(settings)), float(max(settings))
    log = low > 0.0 and high / low >= _LOG_RATIO
    scale: Callable[[float], float] = math.log10 if log else float
    span = scale(high) - scale(low)

    def place(value: float) -> float:
        share = (scale(value) - scale(low)) / span if span else 0.5
        return left + share * (right - left)

    distinct = sorted({float(one) for one in settings})
    if len(distinct) > _MOST_TICKS:
        distinct = _decades(low, high) if log else [low + span * part / 4 for part in range(5)]
    marks = [Tick(at=round(place(one), 1), text=f"{one:.3g}") for one in distinct]
    return place, _spaced(marks), log


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inner = [10.0**power for power in powers if low < 10.0**power < high]
    return [low, *inner, high]


def _spaced(marks: Sequence[Tick]) -> tuple[Tick, ...]:
    """Leave words out that would run into the one before them; the last one stays."""
    kept: list[Tick] = []
    for mark in marks:
        if not kept or mark.at - kept[-1].at >= _LEAST_GAP:
            kept.append(mark)
        elif mark is marks[-1] and len(kept) > 1:
            kept[-1] = mark
    return tuple(kept)


def _up(values: Sequence[float]) -> tuple[Callable[[float], float], tuple[Tick, ...]]:
    low, high = min(values), max(values)
    bottom, top = HEIGHT - _BOTTOM - 6.0, _TOP + 6.0
    if high == low:
        middle = (bottom + top) / 2
        return lambda _value: middle, (Tick(at=middle, text=f"{low:.3g}"),)

    def rise(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    marks = [low + (high - low) * part / 3 for part in range(4)]
    return rise, tuple(Tick(at=round(rise(one), 1), text=f"{one:.3g}") for one in marks)


def _short(text: str) -> str:
    return text if len(text) <= 12 else f"{text[:11]}…"


def _rungs(table: SweepTable, results: RungResults) -> list[Rung]:
    halving = table.sweep.request.halving
    if halving is None:
        return []
    stopped = Counter(results.stopped.values())
    return [
        Rung(
            number=number,
            samples=halving.first_samples * halving.eta ** (number - 1),
            judged=len(losses),
            stopped=stopped[number],
            best=min((loss for loss in losses.values() if loss is not None), default=None),
        )
        for number, losses in enumerate(results.rungs, start=1)
    ]
