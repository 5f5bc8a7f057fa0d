"""The REST API, `/api/v1`: the page and the command line both go through it."""

import asyncio
import importlib.metadata
import time
from typing import Any

import msgspec
from litestar import Request, Router, delete, get, post
from litestar.params import FromPath, FromQuery
from litestar.response import Stream

from slidepack.daemon.planning.devices import whole_device
from slidepack.daemon.preflight import Preflight, preflight
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.requests import JobRequest, ModelRequest
from slidepack.daemon.service import Service
from slidepack.daemon.store.catalogue import ModelRecord
from slidepack.web.access import Access
from slidepack.web.access_api import access_routes
from slidepack.web.chat_api import chat_routes
from slidepack.web.datasets_api import dataset_routes
from slidepack.web.exports_api import export_routes
from slidepack.web.header_values import whole_number
from slidepack.web.jobs_api import job_routes
from slidepack.web.notices_api import notice_routes
from slidepack.web.plan_api import plan_routes
from slidepack.web.policy_api import policy_routes
from slidepack.web.pump import Pump
from slidepack.web.queue_api import queue_routes
from slidepack.web.settings_api import settings_routes
from slidepack.web.streams import queue_stream, shared_stream
from slidepack.web.sweeps_api import sweep_router
from slidepack.web.system_api import system_routes

AnyRequest = Request[Any, Any, Any]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """That the daemon answers, and what it is."""

    status: str
    version: str
    home: str


class LoginLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that logs one browser in."""

    url: str


@get("/health")
async def health(service: Service) -> Health:
    """Say that the daemon is ready."""
    return Health(
        status="ready",
        version=importlib.metadata.version("slidepack"),
        home=str(service.paths.home),
    )


@post("/login-links")
async def create_login_link(access: Access) -> LoginLink:
    """Make a new one-time login link."""
    return LoginLink(url=access.new_link())


@get("/hardware")
async def hardware(service: Service) -> HardwareReport:
    """Return the hardware as it is now."""
    return await asyncio.to_thread(service.hardware.report)


@get("/models")
async def list_models(service: Service) -> list[ModelRecord]:
    """Return all models."""
    return await asyncio.to_thread(service.catalogue.models)


@post("/models")
async def add_model(service: Service, data: ModelRequest) -> ModelRecord:
    """Bring a model in; the answer comes at once, the import goes on."""
    return await asyncio.to_thread(add_model_now, service, data)


@get("/models/{model_id:str}")
async def show_model(service: Service, model_id: FromPath[str]) -> ModelRecord:
    """Return one model."""
    return await asyncio.to_thread(service.catalogue.model, model_id)


@delete("/models/{model_id:str}")
async def forget_model(service: Service, model_id: FromPath[str]) -> None:
    """Take a model off the list."""
    await asyncio.to_thread(service.queue.forget_model, model_id)


@post("/preflight", status_code=200)
async def check_job(service: Service, data: JobRequest) -> Preflight:
    """Say what a job would train on, and whether it would fit, without queueing it."""
    return await asyncio.to_thread(
        preflight,
        data,
        service.catalogue,
        service.paths,
        whole_device(await asyncio.to_thread(service.hardware.report), service.settings.device),
        service.hardware.measured_drives,
        service.disk_room,
    )


@get("/stream")
async def stream_queue(pump: Pump) -> Stream:
    """Stream a note at every change of the lists."""
    return queue_stream(pump)


@get("/events")
async def stream_events(
    request: AnyRequest, pump: Pump, after: FromQuery[int | None] = None
) -> Stream:
    """Stream what happens to all jobs and lists; goes on after the Last-Event-ID header, or after
    `after`, or begins now."""
    last = whole_number(request.headers.get("last-event-id", ""))
    return shared_stream(pump, after if last is None else last)


def add_model_now(service: Service, data: ModelRequest) -> ModelRecord:
    """Record a model to bring in."""
    return service.imports.add(data.source, data.name, data.revision, time.time())


def api_router() -> Router:
    """Return the API's routes."""
    return Router(
        path="/api/v1",
        route_handlers=[
            health,
            create_login_link,
            hardware,
            list_models,
            add_model,
            show_model,
            forget_model,
            check_job,
            stream_queue,
            stream_events,
            *job_routes(),
            *dataset_routes(),
            *chat_routes(),
            *export_routes(),
            *access_routes(),
            *settings_routes(),
            *notice_routes(),
            *plan_routes(),
            *policy_routes(),
            *queue_routes(),
            *system_routes(),
            sweep_router(),
        ],
    )
