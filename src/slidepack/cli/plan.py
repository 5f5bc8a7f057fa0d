"""`slidepack plan`: who runs where and when, how good that is, and what would be if."""

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from slidepack.cli.client import connect
from slidepack.cli.gantt import clock, duration, gantt
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.daemon.planner.answer import Plan
from slidepack.daemon.planning.report import PlanReport, ReportedJob
from slidepack.daemon.planning.what_if import WhatIf
from slidepack.daemon.store.costs import Accuracy
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.memory_parts import GIB

__all__ = ["plan"]

_BESIDE_BAR: Final = 48
"""Characters of a chart's line beside its bar."""
_SHORTEST_BAR: Final = 20
_MOST_WAITING: Final = 40
_HASH_LETTERS: Final = 8


def plan(
    what_if: Annotated[
        Path | None,
        typer.Option(
            "--what-if",
            help="TOML file of devices, jobs and windows that would be; nothing of it is done.",
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Say what runs where and when, and why the rest waits; takes up to ten seconds."""
    asked = None if what_if is None else read_what_if(what_if)
    client = connect()
    answer = client.get("/plan") if asked is None else client.post("/plan", asked)
    if json_output:
        print_json(answer)
        return
    report = msgspec.convert(answer, PlanReport)
    for line in _summary(report):
        say(line)
    waiting = [job for job in report.jobs if job.waits]
    if waiting:
        _print_waiting(waiting, report.plan.now if report.plan else 0.0)
    for job in report.jobs:
        if job.in_time is False:
            say(_late(job, report.plan.now if report.plan else 0.0))
    for note in report.notes:
        say(f"Note: {note}")
    _print_accuracy(report.accuracy)


def read_what_if(file: Path) -> WhatIf:
    """Return what a file asks for.

    Raises:
        SlidepackError: DATA-NOT-FOUND where it cannot be read, DAEMON-REQUEST-INVALID where it asks
            for nothing that can be planned.
    """
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise SlidepackError(
            "DATA-NOT-FOUND",
            "The file of what would be cannot be read.",
            why=f"{file}: {why}",
            fix="Check the path.",
        ) from error
    try:
        return msgspec.convert(tomllib.loads(text), WhatIf)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "The file of what would be cannot be used.",
            why=f"{file}: {error}",
            fix=f"Its keys are {', '.join(WhatIf.__struct_fields__)}.",
        ) from error


def _summary(report: PlanReport) -> Iterator[str]:
    found = report.plan
    if found is None:
        yield f"There is no plan: {report.waiting.removeprefix('waits: ')}."
        return
    if not found.tasks:
        yield "There is nothing to plan: the queue is empty."
        return
    names = {job.key: job.name for job in report.jobs}
    width = max(_SHORTEST_BAR, shutil.get_terminal_size().columns - _BESIDE_BAR)
    for device in report.devices:
        lanes = found.max_lanes.get(device.key, 0)
        together = f", at most {lanes} jobs at once" if lanes > 1 else ""
        yield f"{device.key} ({device.name}, {device.memory_bytes / GIB:.1f} GiB{together})"
        yield from gantt(found, names, device.key, width) if lanes else ["  nothing runs here"]
    yield from _figures(found)


def _figures(found: Plan) -> Iterator[str]:
    end = clock(found.now + found.makespan_seconds, found.now)
    closed = found.makespan_seconds - found.open_seconds
    pauses = f", {duration(closed)} of it outside the windows" if closed >= 60 else ""
    yield f"Everything that can end has ended at {end}: {duration(found.makespan_seconds)}{pauses}."
    yield (
        f"No plan can take less than {duration(found.bound_seconds)}; "
        f"this one is at most {found.gap:.1%} above it."
    )
    yield f"One by one on each device it would take {duration(found.one_by_one_seconds)}."
    yield found.verdict


def _late(job: ReportedJob, now: float) -> str:
    wanted = "" if job.deadline is None else f", and should be by {clock(job.deadline, now)}"
    if job.end is None:
        return f"Late: {job.key} ({job.name}) will not be done{wanted}."
    return f"Late: {job.key} ({job.name}) will be done at {clock(job.end, now)}{wanted}."


def _print_waiting(waiting: list[ReportedJob], now: float) -> None:
    print_table(
        ("waits", "job", "begins", "why"),
        (
            (
                job.key,
                job.name,
                "" if job.begin is None else clock(job.begin, now),
                job.waits,
            )
            for job in waiting[:_MOST_WAITING]
        ),
    )
    if len(waiting) > _MOST_WAITING:
        say(f"and {len(waiting) - _MOST_WAITING} more; --json has them all.")


def _print_accuracy(found: tuple[Accuracy, ...]) -> None:
    if not found:
        say("No prediction could be checked yet: no job has ended undisturbed.")
        return
    say("How far off predictions were of when a job ends, by the time that was left:")
    print_table(
        ("device", "base", "jobs", "median", "worst"),
        (
            (one.device, _base(one), one.jobs, f"{one.median_error:.0%}", f"{one.worst_error:.0%}")
            for one in found
        ),
    )


def _base(one: Accuracy) -> str:
    """Return a base by the start of its hash, and how it is held."""
    content_hash, _, form = one.model.partition("|")
    return f"{content_hash[:_HASH_LETTERS]} {form.replace('|', ' ')}".strip()
