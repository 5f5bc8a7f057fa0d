"""What a job's page draws beside the records: lanes, how long it goes on, its settings. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from slidepack.daemon.remaining import Holds, Remaining, holds
from slidepack.daemon.states import JobState
from slidepack.daemon.store.attempts import AttemptRecord
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.web.format import size
from slidepack.web.queue_view import Spark

__all__ = ["Ending", "Lane", "Setting", "drives_of", "ending_of", "lane_of", "settings_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """A job that shares, or shared, a worker with the one of the page."""

    job_id: int
    name: str
    state: JobState
    step: int
    total_steps: int
    loss: float | None
    spark: Spark | None
    """Its training loss so far."""
    own: bool
    """Whether it is the job of the page."""
    aboard: bool
    """Whether it is in that worker now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """When a job is done, as far as that is known."""

    left: Remaining | None = None
    """By its own newest steps."""
    planned: float | None = None
    """By the plan of the queue, in unix seconds."""
    deadline: float | None = None
    holds: Holds | None = None
    """None where there is no deadline, or nothing to say yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One frozen setting."""

    name: str
    value: str


def lane_of(job: JobRecord, curve: Spark | None, *, own: bool, aboard: bool) -> Lane:
    """Return a job as a lane."""
    return Lane(
        job_id=job.id,
        name=job.name,
        state=job.state,
        step=job.step,
        total_steps=job.total_steps,
        loss=job.loss,
        spark=curve,
        own=own,
        aboard=aboard,
    )


def ending_of(job: JobRecord, left: Remaining | None, planned: float | None, now: float) -> Ending:
    """Return when a job is done, and whether that is in time.

    Args:
        job: it.
        left: by its own steps, where it runs.
        planned: its end in the plan, in unix seconds.
        now: unix seconds.
    """
    if job.deadline is None or job.terminal:
        return Ending(left=left, planned=planned, deadline=job.deadline)
    verdict: Holds | None = None
    if left is not None:
        verdict = holds(job.deadline, now + left.low, now + left.high)
    elif planned is not None:
        verdict = holds(job.deadline, planned, planned)
    elif now > job.deadline:
        verdict = "missed"
    return Ending(left=left, planned=planned, deadline=job.deadline, holds=verdict)


def settings_of(spec: JobSpec) -> tuple[Setting, ...]:
    """Return every frozen setting of a job, in the order of the specification."""
    return tuple(Setting(name=name, value=value) for name, value in _flat("", spec))


def drives_of(attempts: Sequence[AttemptRecord], moved_by: str = "") -> str:
    """Return what the newest attempt has on drives, in words; empty where that is nothing.

    Args:
        attempts: of the job.
        moved_by: the transport and why it is that one, where that is known.
    """
    try:
        plan = RunFolder(Path(attempts[-1].folder)).read_plan() if attempts else None
    except SlidepackError:
        # It has not begun, or was deleted.
        plan = None
    if plan is None or plan.full is None or plan.full.nvme is None:
        return ""
    tier = plan.full.nvme
    said = (
        f"{size(tier.held_bytes)}, {size(tier.step_write_bytes)} written a step "
        f"({', '.join(tier.folders)})"
    )
    return f"{said}; {moved_by}" if moved_by else said


def _flat(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        if isinstance(tag, str):
            yield f"{prefix}kind", tag
        fields: Mapping[str, Any] = {name: getattr(value, name) for name in value.__struct_fields__}
        for name, inner in fields.items():
            nested = isinstance(inner, msgspec.Struct)
            yield from _flat(f"{prefix}{name}." if nested else f"{prefix}{name}", inner)
    else:
        yield prefix, _written(value)


def _written(value: object) -> str:
    if value is None or value == () or value == "":
        return "–"  # noqa: RUF001 - a dash for "no value", as tables show it
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return ", ".join(_written(one) for one in value)
    return str(value)
