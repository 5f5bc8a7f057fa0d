"""The job routes of the REST API."""

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import File, Stream

from slidepack.daemon.duplicating import duplicate
from slidepack.daemon.exports.record import ExportRecord
from slidepack.daemon.requests import JobRequest, MoveRequest, RetryRequest
from slidepack.daemon.service import Service
from slidepack.daemon.smaller import retry_smaller
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.series import MAX_POINTS
from slidepack.engine.data.first_row import FirstRow, first_row_in_process
from slidepack.web.continue_api import continue_job
from slidepack.web.header_values import whole_number
from slidepack.web.pump import Pump
from slidepack.web.results import (
    Chart,
    CheckpointRow,
    JobDetail,
    ThinChart,
    adapter_zip,
    chart,
    checkpoint_rows,
    job_detail,
    log_tail,
    thin_chart,
)
from slidepack.web.streams import job_stream

AnyRequest = Request[Any, Any, Any]


class RemovedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was deleted."""

    removed: int
    exports: list[ExportRecord]
    """Its exports, which stay until they are deleted themselves."""


@get("/jobs")
async def list_jobs(service: Service) -> list[JobRecord]:
    """Return the jobs: the live, the queue in its order, the ended."""
    return await asyncio.to_thread(service.jobs.list_jobs)


@post("/jobs")
async def add_job(service: Service, data: JobRequest) -> JobRecord:
    """Queue a job."""
    return await asyncio.to_thread(service.queue.add, data)


@get("/jobs/{job_id:int}")
async def show_job(service: Service, job_id: FromPath[int]) -> JobDetail:
    """Return everything about a job."""
    return await asyncio.to_thread(job_detail, service, job_id)


@post("/jobs/{job_id:int}/cancel", status_code=200)
async def cancel_job(service: Service, job_id: FromPath[int]) -> JobRecord:
    """End a job."""
    return await asyncio.to_thread(service.queue.cancel, job_id)


@post("/jobs/{job_id:int}/pause", status_code=200)
async def pause_job(service: Service, job_id: FromPath[int]) -> JobRecord:
    """Checkpoint a job and hold it."""
    return await asyncio.to_thread(service.queue.pause, job_id)


@post("/jobs/{job_id:int}/resume", status_code=200)
async def resume_job(service: Service, job_id: FromPath[int]) -> JobRecord:
    """Let a paused job go on."""
    return await asyncio.to_thread(service.queue.resume, job_id)


@post("/jobs/{job_id:int}/retry")
async def retry_job(
    service: Service, job_id: FromPath[int], data: RetryRequest | None = None
) -> JobRecord:
    """Queue an ended job again, from its start or from its last good checkpoint."""
    return await asyncio.to_thread(service.queue.retry, job_id, data)


@post("/jobs/{job_id:int}/smaller")
async def retry_job_smaller(service: Service, job_id: FromPath[int]) -> JobRecord:
    """Queue an ended job anew with settings that take less memory."""
    return await asyncio.to_thread(retry_smaller, service, job_id)


@post("/jobs/{job_id:int}/duplicate")
async def duplicate_job(service: Service, job_id: FromPath[int]) -> JobRecord:
    """Queue a second job with the settings of any job, be it running, at the end of the queue."""
    return await asyncio.to_thread(duplicate, service, job_id)


@post("/jobs/{job_id:int}/move", status_code=200)
async def move_job(service: Service, job_id: FromPath[int], data: MoveRequest) -> JobRecord:
    """Give a job another place in the queue."""
    return await asyncio.to_thread(service.queue.move, job_id, data)


@delete("/jobs/{job_id:int}", status_code=200)
async def remove_job(service: Service, job_id: FromPath[int]) -> RemovedJob:
    """Delete an ended job with everything that it left but its exports, which are copies."""
    kept = await asyncio.to_thread(service.queue.remove, job_id)
    return RemovedJob(removed=job_id, exports=kept)


@get("/jobs/{job_id:int}/chart")
async def job_chart(service: Service, job_id: FromPath[int]) -> Chart:
    """Return every step of a job's series; `series` thins them out."""
    return await asyncio.to_thread(chart, service, job_id)


@get("/jobs/{job_id:int}/series")
async def job_series(
    service: Service,
    job_id: FromPath[int],
    begin: Annotated[int | None, QueryParameter(name="from", ge=0)] = None,
    end: Annotated[int | None, QueryParameter(name="to", ge=0)] = None,
    points: Annotated[int, QueryParameter(ge=4, le=MAX_POINTS)] = 1000,
) -> ThinChart:
    """Return a job's series from one step to another in at most `points` points.

    Each point has the lowest, the highest and the mean value of its steps, so that no spike is
    lost; a shorter range is finer, down to single steps.
    """
    return await asyncio.to_thread(thin_chart, service, job_id, begin, end, points)


@get("/jobs/{job_id:int}/checkpoints")
async def job_checkpoints(service: Service, job_id: FromPath[int]) -> list[CheckpointRow]:
    """Return the newest checkpoints of a job, newest first, those that were deleted too."""
    return await asyncio.to_thread(checkpoint_rows, service, job_id)


@get("/jobs/{job_id:int}/first-row")
async def job_first_row(service: Service, job_id: FromPath[int]) -> FirstRow:
    """Return the first row that a job trains on, as its model sees it."""
    spec = await asyncio.to_thread(service.jobs.spec, job_id)
    return await asyncio.to_thread(first_row_in_process, spec)


@get("/jobs/{job_id:int}/log", media_type="text/plain")
async def job_log(service: Service, job_id: FromPath[int]) -> str:
    """Return the end of the worker's log."""
    return await asyncio.to_thread(log_tail, service, job_id)


@get("/jobs/{job_id:int}/adapter")
async def download_adapter(service: Service, job_id: FromPath[int]) -> File:
    """Return the trained adapter, a PEFT folder, as a zip file."""
    path = await asyncio.to_thread(adapter_zip, service, job_id)
    return File(path, filename=f"job-{job_id}-adapter.zip", media_type="application/zip")


@get("/jobs/{job_id:int}/stream")
async def stream_job(
    request: AnyRequest,
    service: Service,
    pump: Pump,
    job_id: FromPath[int],
    after: FromQuery[int] = 0,
) -> Stream:
    """Stream a job's events; goes on after the Last-Event-ID header, or after `after`."""
    await asyncio.to_thread(service.jobs.get, job_id)
    last = whole_number(request.headers.get("last-event-id", ""))
    return job_stream(pump, job_id, after if last is None else last)


def job_routes() -> list[HTTPRouteHandler]:
    """Return the routes below `/jobs`."""
    return [
        list_jobs,
        add_job,
        show_job,
        cancel_job,
        pause_job,
        resume_job,
        retry_job,
        continue_job,
        duplicate_job,
        retry_job_smaller,
        move_job,
        remove_job,
        job_chart,
        job_series,
        job_checkpoints,
        job_first_row,
        job_log,
        download_adapter,
        stream_job,
    ]
