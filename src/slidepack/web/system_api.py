"""The machine around the queue over the API: what happens at its end, and what keeps it awake."""

import asyncio
import time

import msgspec
from litestar import MediaType, get, post, put
from litestar.handlers import HTTPRouteHandler

from slidepack.daemon.doctor.examination import Examination
from slidepack.daemon.service import Service
from slidepack.daemon.system.queue_end import EndAction, QueueEndState
from slidepack.daemon.system.sleep_guard import GuardState
from slidepack.web.doctor_page import report_of


class EndRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to happen once when the queue is done."""

    action: EndAction


class DoctorState(msgspec.Struct, frozen=True, kw_only=True):
    """How the doctor stands."""

    running: bool
    """Whether an examination is on."""
    last: Examination | None
    """None before the first."""


@get("/queue/end")
async def show_queue_end(service: Service) -> QueueEndState:
    """Return what happens when the queue is done, and when."""
    return service.queue_end.state(time.monotonic())


@put("/queue/end")
async def choose_queue_end(service: Service, data: EndRequest) -> QueueEndState:
    """Choose what happens when the queue is done: nothing, a suspend, or power off."""
    await asyncio.to_thread(service.queue_end.arm, data.action)
    service.changes.bump()
    return service.queue_end.state(time.monotonic())


@post("/queue/end/cancel", status_code=200)
async def cancel_queue_end(service: Service) -> QueueEndState:
    """Leave the machine on, also in the last five minutes."""
    await asyncio.to_thread(service.queue_end.cancel)
    service.changes.bump()
    return service.queue_end.state(time.monotonic())


@get("/system/sleep")
async def show_sleep_guard(service: Service) -> GuardState:
    """Say what keeps this machine awake while a run is on."""
    return service.guard.state()


@get("/doctor")
async def show_examination(service: Service) -> DoctorState:
    """Return what the doctor found last; nothing before the first examination."""
    return DoctorState(running=service.examiner.running(), last=service.examiner.last())


@post("/doctor", status_code=202)
async def begin_examination(service: Service) -> DoctorState:
    """Begin an examination, unless one is on: torch is asked, and the disk is measured."""
    service.examiner.begin()
    return DoctorState(running=True, last=service.examiner.last())


@get("/doctor/report", media_type=MediaType.TEXT)
async def show_report(service: Service) -> str:
    """Return the doctor's report as text for a bug report, without names and secrets."""
    return await asyncio.to_thread(report_of, service)


def system_routes() -> list[HTTPRouteHandler]:
    """Return the routes of the machine."""
    doctor = (show_examination, begin_examination, show_report)
    return [show_queue_end, choose_queue_end, cancel_queue_end, show_sleep_guard, *doctor]
