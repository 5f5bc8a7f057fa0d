"""The machine around the queue over the API: what happens at its end, and what keeps it awake."""

import asyncio
import time

import msgspec
from litestar import get, post, put
from litestar.handlers import HTTPRouteHandler

from slidepack.daemon.service import Service
from slidepack.daemon.system.queue_end import EndAction, QueueEndState
from slidepack.daemon.system.sleep_guard import GuardState


class EndRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to happen once when the queue is done."""

    action: EndAction


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


def system_routes() -> list[HTTPRouteHandler]:
    """Return the routes of the machine."""
    return [show_queue_end, choose_queue_end, cancel_queue_end, show_sleep_guard]
