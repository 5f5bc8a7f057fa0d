"""Server-sent events: what happened since the last id, then what happens."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from litestar.response.sse import ServerSentEventMessage

from slidepack.daemon.service import Service
from slidepack.daemon.store.database import Row

_POLL_SECONDS: Final = 0.2
_KEEP_ALIVE_SECONDS: Final = 15.0
_CHART_EVENTS: Final = frozenset({"progress", "eval"})


async def job_stream(
    service: Service, job_id: int, after: int
) -> AsyncIterator[ServerSentEventMessage]:
    """Yield a job's stored events after an id, then new ones as they come.

    Progress and evaluations go out under their own names with their JSON; whatever else changes
    the job goes out as `changed`, for the page to fetch what it shows.
    """
    state = ""
    async for _ in _whenever_changed(service):
        while rows := await asyncio.to_thread(service.runlog.events_after, after, job_id):
            for row in rows:
                after = int(row["id"])
                yield _event_message(row)
        job = await asyncio.to_thread(service.jobs.get, job_id)
        shown = f"{job.state} {job.reason} {job.wanted}"
        if shown != state:
            state = shown
            yield ServerSentEventMessage(data=job.state, event="changed")
        else:
            yield ServerSentEventMessage(data=None, comment="alive")


async def queue_stream(service: Service) -> AsyncIterator[ServerSentEventMessage]:
    """Yield `changed` whenever anything that a list shows has changed."""
    seen = -1
    async for version in _whenever_changed(service):
        if version != seen:
            seen = version
            yield ServerSentEventMessage(data=str(version), event="changed")
        else:
            yield ServerSentEventMessage(data=None, comment="alive")


async def _whenever_changed(service: Service) -> AsyncIterator[int]:
    """Yield the change count at once, at every change, and as a keep-alive."""
    seen = -1
    waited = 0.0
    while not service.stopping.is_set():
        version = service.changes.version
        if version != seen or waited >= _KEEP_ALIVE_SECONDS:
            seen = version
            waited = 0.0
            yield version
        await asyncio.sleep(_POLL_SECONDS)
        waited += _POLL_SECONDS


def _event_message(row: Row) -> ServerSentEventMessage:
    kind = str(row["type"])
    name = kind if kind in _CHART_EVENTS else "changed"
    body = str(row["body"]) if kind in _CHART_EVENTS else msgspec.json.encode(kind).decode()
    return ServerSentEventMessage(data=body, event=name, id=str(row["id"]))
