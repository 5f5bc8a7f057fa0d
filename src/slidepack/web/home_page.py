"""The first page: the machine, what trains, what comes next, the coming day and the last night."""

import asyncio
import os
import time
from collections.abc import Callable
from datetime import tzinfo
from pathlib import Path
from typing import Any, Final

from litestar import Request, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Template

from slidepack.daemon.doctor.judge import findings
from slidepack.daemon.notices.digest import Digest
from slidepack.daemon.policy.windows import clock_text, open_spans, system_zone
from slidepack.daemon.service import Service
from slidepack.daemon.store.attempts import AttemptRecord
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.web.access import Access
from slidepack.web.contexts import HomePage
from slidepack.web.day_strip import DayStrip, day_strip, strip_end
from slidepack.web.hardware_view import HardwareView, hardware_view
from slidepack.web.page_parts import require_known
from slidepack.web.page_session import csrf_of
from slidepack.web.queue_view import LiveJob, QueueView, queue_view, spark

__all__ = ["home_pages"]

AnyRequest = Request[Any, Any, Any]

_MOST_LIVE: Final = 8
_MOST_NEXT: Final = 6
_MOST_ENDED: Final = 5
_SPARK_POINTS: Final = 48
_QUEUE_ACTIONS: Final = ("pause", "resume")


@get("/")
async def home(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show the first page."""
    page = await asyncio.to_thread(_home, request, service, access)
    return Template("home.html", context={"page": page})


@get("/parts/{part:str}")
async def home_part(service: Service, part: FromPath[str]) -> Template:
    """Show one part of the first page."""
    require_known(part, tuple(_PARTS))
    return await _part(service, part)


@post("/queue/{action:str}", status_code=200)
async def hold_queue(service: Service, action: FromPath[str]) -> Template:
    """Give the GPU back until the user resumes, or resume; show how the policy stands."""
    require_known(action, _QUEUE_ACTIONS)
    await asyncio.to_thread(service.policy.pause if action == "pause" else service.policy.resume)
    return await _part(service, "policy")


def home_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [home, home_part, hold_queue]


async def _part(service: Service, part: str) -> Template:
    view = await asyncio.to_thread(_PARTS[part], service)
    return Template(f"parts/{part}.html", context={"view": view})


def _home(request: AnyRequest, service: Service, access: Access) -> HomePage:
    return HomePage(
        csrf_token=csrf_of(request, access),
        hardware=_hardware(service),
        policy=service.policy.state(time.time()),
        queue=_queue(service),
        tonight=_tonight(service),
        digest=_digest(service),
        begun=_begun(service),
    )


def _hardware(service: Service) -> HardwareView:
    report = service.hardware.report()
    return hardware_view(
        report,
        problems=[found for found in findings(report) if found.level == "problem"],
        holders=service.holders(),
        planned_ram_bytes=_planned_ram(service.attempts.live()),
        load=os.getloadavg()[0],
        wear=service.hardware.wear,
    )


def _planned_ram(live: list[AttemptRecord]) -> int:
    """Return what the workers take of the main memory by their plans, in bytes."""
    folders = {attempt.nonce: attempt.folder for attempt in live}
    total = 0
    for folder in folders.values():
        try:
            total += RunFolder(Path(folder)).read_plan().predicted_host_bytes
        except SlidepackError:
            # It begins, or its worker will say what is wrong with its folder.
            continue
    return total


def _queue(service: Service) -> QueueView:
    now, zone = time.time(), system_zone()
    devices = {attempt.job_id: attempt.device for attempt in service.attempts.live()}
    return queue_view(
        live=[
            LiveJob(
                job=job,
                spark=spark(service.runlog.glance(job.id, _SPARK_POINTS)),
                device=_device(service, devices.get(job.id, "")),
                done=_done(job, now, zone),
            )
            for job in service.jobs.live()[:_MOST_LIVE]
        ],
        waiting=service.jobs.waiting_first(_MOST_NEXT),
        ended=service.jobs.ended_last(_MOST_ENDED),
        counts=service.jobs.counts(),
        planned=service.replanner.plan(),
        now=now,
        zone=zone,
    )


def _device(service: Service, device: str) -> str:
    return "CPU" if device == "cpu" else service.hardware.name_of(device) or device


def _done(job: JobRecord, now: float, zone: tzinfo) -> str:
    if job.state != "running" or job.eta_seconds is None:
        return ""
    return clock_text(now + job.eta_seconds, now, zone)


def _tonight(service: Service) -> DayStrip:
    now = time.time()
    policy = service.policy.policy()
    # As all other times of the page, whatever zone the windows are written in.
    zone = system_zone()
    planned = service.replanner.plan()
    return day_strip(
        now,
        zone,
        open_spans(policy, now, strip_end(now, zone)),
        None if planned is None else planned.plan,
    )


def _digest(service: Service) -> Digest:
    return service.notices.digest(time.time())


def _begun(service: Service) -> bool:
    return any(model.state != "failed" for model in service.catalogue.models())


_PARTS: Final[dict[str, Callable[[Service], object]]] = {
    "hardware": _hardware,
    "policy": lambda service: service.policy.state(time.time()),
    "queue": _queue,
    "tonight": _tonight,
    "digest": _digest,
}
