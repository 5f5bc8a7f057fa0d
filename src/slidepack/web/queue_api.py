"""The routes of the REST API that change several jobs, or a job's place in time."""

import asyncio

from litestar import post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from slidepack.daemon.rearranging import (
    BatchRequest,
    MoveManyRequest,
    Outcome,
    RescheduleRequest,
    act_on,
    move_jobs,
    reschedule,
)
from slidepack.daemon.service import Service
from slidepack.daemon.store.jobs import JobRecord

__all__ = ["queue_routes"]


@post("/queue/move", status_code=200)
async def move_several(service: Service, data: MoveManyRequest) -> list[JobRecord]:
    """Give several jobs, which keep the order in which they are named, another place."""
    return await asyncio.to_thread(move_jobs, service, data)


@post("/queue/act", status_code=200)
async def act_on_several(service: Service, data: BatchRequest) -> list[Outcome]:
    """Pause, resume, cancel, retry, duplicate, delete or reschedule several jobs.

    The answer says of each job what became of it: one that refuses stops no other.
    """
    return await asyncio.to_thread(act_on, service, data)


@post("/jobs/{job_id:int}/reschedule", status_code=200)
async def reschedule_job(
    service: Service, job_id: FromPath[int], data: RescheduleRequest
) -> JobRecord:
    """Change a job's priority, its deadline, or when it may start."""
    return await asyncio.to_thread(reschedule, service, job_id, data)


def queue_routes() -> list[HTTPRouteHandler]:
    """Return the handlers, for the API's router."""
    return [move_several, act_on_several, reschedule_job]
