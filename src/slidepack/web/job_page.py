"""A job's page: its parts, which are fetched again while it is live, and its buttons."""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any, Final

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.plugins.htmx import ClientRedirect
from litestar.response import Template

from slidepack.daemon.duplicating import duplicate
from slidepack.daemon.planner.answer import TaskPlan
from slidepack.daemon.planning.picture import task_key
from slidepack.daemon.queue import can_go_on
from slidepack.daemon.remaining import STEPS_LOOKED_AT, remaining
from slidepack.daemon.requests import RetryRequest
from slidepack.daemon.service import Service
from slidepack.daemon.smaller import retry_smaller
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.series import SeriesStore
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.first_row import first_row_in_process
from slidepack.web.access import Access
from slidepack.web.contexts import JobPage, SamplePair
from slidepack.web.export_view import ExportsView, exports_view
from slidepack.web.job_view import (
    Ending,
    Lane,
    drives_of,
    ending_of,
    lane_of,
    settings_of,
)
from slidepack.web.page_parts import leave, require_known
from slidepack.web.page_session import csrf_of
from slidepack.web.queue_view import spark
from slidepack.web.results import JobDetail, checkpoint_rows, job_detail, log_tail

__all__ = ["job_pages"]

AnyRequest = Request[Any, Any, Any]

_LOG_BYTES: Final = 6000
_SPARK_POINTS: Final = 48
_PARTS: Final = (
    "status",
    "actions",
    "continue",
    "samples",
    "judged",
    "history",
    "log",
    "lanes",
    "checkpoints",
)
_ACTIONS: Final = ("cancel", "pause", "resume", "retry", "rescue", "smaller", "duplicate")
_RESCUE: Final = RetryRequest(resume=True, lr_factor=1 / 3)
"""What a run that diverged is offered."""
_NO_EXPORTS: Final = ExportsView(job_id=0, cards=())


@get("/jobs/{job_id:int}")
async def job(
    request: AnyRequest, service: Service, access: Access, job_id: FromPath[int]
) -> Template:
    """Show a job."""
    page = await asyncio.to_thread(_job, request, service, access, job_id)
    return Template("job.html", context={"page": page})


@get("/jobs/{job_id:int}/parts/{part:str}")
async def job_part(
    request: AnyRequest,
    service: Service,
    access: Access,
    job_id: FromPath[int],
    part: FromPath[str],
) -> Response[Any]:
    """Show one part of a job's page."""
    require_known(part, _PARTS)
    try:
        page = await asyncio.to_thread(_job, request, service, access, job_id, part)
    except SlidepackError as error:
        return leave(error, "/queue")
    return Template(f"parts/job_{part}.html", context={"page": page})


@get("/jobs/{job_id:int}/first-row")
async def first_row(service: Service, job_id: FromPath[int]) -> Template:
    """Show the first training row as the model sees it; a process of its own renders it."""
    spec = await asyncio.to_thread(service.jobs.spec, job_id)
    row = await asyncio.to_thread(first_row_in_process, spec)
    return Template("parts/first_row.html", context={"row": row})


@post("/jobs/{job_id:int}/{action:str}", status_code=200)
async def act(
    request: AnyRequest,
    service: Service,
    access: Access,
    job_id: FromPath[int],
    action: FromPath[str],
) -> Response[Any]:
    """Do what a button says; show what may be done next, or the job that was made."""
    require_known(action, _ACTIONS)
    commands: dict[str, Callable[[int], JobRecord]] = {
        "cancel": service.queue.cancel,
        "pause": service.queue.pause,
        "resume": service.queue.resume,
        "retry": service.queue.retry,
        "rescue": functools.partial(service.queue.retry, request=_RESCUE),
        "smaller": functools.partial(retry_smaller, service),
        "duplicate": functools.partial(duplicate, service),
    }
    changed = await asyncio.to_thread(commands[action], job_id)
    if changed.id != job_id:
        return ClientRedirect(f"/jobs/{changed.id}")
    page = await asyncio.to_thread(_job, request, service, access, job_id, "actions")
    return Template("parts/job_actions.html", context={"page": page})


def job_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [job, job_part, first_row, act]


def _job(
    request: AnyRequest, service: Service, access: Access, job_id: int, part: str = ""
) -> JobPage:
    """Return what the page shows; for a part alone, what is costly and not of it is left out."""

    def shows(name: str) -> bool:
        return part in ("", name)

    # Read before the rest, so that the live stream repeats an event rather than skips it.
    last_event_id = service.runlog.last_event_id()
    detail = job_detail(service, job_id)
    error = detail.job.error
    diverged = detail.job.state == "failed" and error is not None and error.code == "RUN-DIVERGED"
    measured = [row for row in detail.evaluations if row["split"] == "selection"]
    goes_on = shows("continue") and detail.job.terminal
    return JobPage(
        csrf_token=csrf_of(request, access),
        detail=detail,
        samples=_sample_pairs(detail),
        log=log_tail(service, job_id, _LOG_BYTES) if shows("log") else "",
        eval_before=measured[0]["loss"] if measured else None,
        eval_now=measured[-1]["loss"] if len(measured) > 1 else None,
        last_event_id=last_event_id,
        rescuable=diverged and can_go_on(service.jobs, service.runlog, detail.job),
        continuable=goes_on and service.continuing.can_continue(detail.job),
        datasets=service.catalogue.datasets() if goes_on else [],
        exports=exports_view(service, job_id) if shows("") else _NO_EXPORTS,
        ending=_ending(service, detail.job) if shows("status") else Ending(),
        lanes=_lanes(service, detail) if shows("lanes") else (),
        checkpoints=tuple(checkpoint_rows(service, job_id)) if shows("checkpoints") else (),
        settings=settings_of(detail.spec) if shows("") else (),
        drives=_drives(service, detail) if shows("") else "",
    )


def _drives(service: Service, detail: JobDetail) -> str:
    return drives_of(detail.attempts, service.runlog.drives_moved_by(detail.job.id))


def _ending(service: Service, job: JobRecord) -> Ending:
    left = None
    if job.state == "running":
        times = SeriesStore(service.database).newest_times(job.id, STEPS_LOOKED_AT)
        left = remaining(times, job.total_steps)
    task = None if job.terminal else _planned(service, job.id)
    return ending_of(job, left, None if task is None else task.end, time.time())


def _planned(service: Service, job_id: int) -> TaskPlan | None:
    planned = service.replanner.plan()
    if planned is None:
        return None
    key = task_key(job_id)
    return next((task for task in planned.plan.tasks if task.task == key), None)


def _lanes(service: Service, detail: JobDetail) -> tuple[Lane, ...]:
    """Return the jobs of the newest pack that the job was in; none where it was alone there."""
    packs = [attempt.pack_id for attempt in detail.attempts if attempt.pack_id is not None]
    if not packs:
        return ()
    aboard: dict[int, bool] = {}
    for attempt in service.attempts.of_pack(packs[-1]):
        aboard[attempt.job_id] = attempt.state == "live"
    if len(aboard) < 2:
        return ()
    return tuple(
        lane_of(
            service.jobs.get(job_id),
            spark(service.runlog.glance(job_id, _SPARK_POINTS)),
            own=job_id == detail.job.id,
            aboard=live,
        )
        for job_id, live in aboard.items()
    )


def _sample_pairs(detail: JobDetail) -> list[SamplePair]:
    """Pair each question's first answer (of the base) with its last, in the job's order."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for row in detail.samples:
        answers.setdefault(row["prompt"], []).append(row)
    order = {prompt: place for place, prompt in enumerate(detail.spec.eval.sample_prompts)}
    prompts = sorted(answers, key=lambda prompt: order.get(prompt, len(order)))
    return [
        SamplePair(
            prompt=prompt,
            before=answers[prompt][0]["answer"],
            after=answers[prompt][-1]["answer"] if len(answers[prompt]) > 1 else None,
        )
        for prompt in prompts
    ]
