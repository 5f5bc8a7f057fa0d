"""Server-sent events: what happened since the last id, then what happens."""

from collections.abc import AsyncIterator
from typing import Final

from litestar.response import Stream

from slidepack.web.batches import make_batch, message
from slidepack.web.pump import Listener, Pump

_AGAIN: Final = b"retry: 2000\n\n"
"""When a browser that lost the stream asks again, in milliseconds."""
_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}


def shared_stream(pump: Pump, after: int | None) -> Stream:
    """Return every job's events, and `changed` for all else, on one stream.

    It begins with `hello` and the id after which it goes on: `after`, or now where that is None.
    Progress and evaluations have a field `job`; `changed` says which jobs stand otherwise, and
    whether anything else does.
    """
    return _response(_shared(pump, after))


def job_stream(pump: Pump, job_id: int, after: int) -> Stream:
    """Return a job's stored events after an id, then new ones as they come.

    Progress and evaluations go out under their own names with their JSON; whatever else changes
    the job goes out as `changed`, for the page to fetch what it shows.
    """
    return _response(_of_job(pump, job_id, after))


def queue_stream(pump: Pump) -> Stream:
    """Return `changed` whenever anything that a list shows has changed."""
    return _response(_of_lists(pump))


def _response(chunks: AsyncIterator[bytes]) -> Stream:
    return Stream(chunks, media_type="text/event-stream", headers=_HEADERS)


async def _shared(pump: Pump, after: int | None) -> AsyncIterator[bytes]:
    async with pump.running():
        begin = pump.last_id if after is None else min(after, pump.last_id)
        yield _AGAIN + message(event="hello", data=str(begin), event_id=begin)
        async for batch in pump.missed(begin, None):
            yield batch.shared
        with pump.listen(lambda batch: batch.shared) as listener:
            # Whatever changed while that was sent, and left no event.
            yield make_batch((), last_id=pump.last_id, lists=True).shared
            async for chunk in _live(listener):
                yield chunk


async def _of_job(pump: Pump, job_id: int, after: int) -> AsyncIterator[bytes]:
    async with pump.running():
        yield _AGAIN
        async for batch in pump.missed(min(after, pump.last_id), job_id):
            yield batch.by_job[job_id]
        with pump.listen(lambda batch: batch.by_job.get(job_id, batch.idle)) as listener:
            yield message(event="changed", data=await pump.state_of(job_id))
            async for chunk in _live(listener):
                yield chunk


async def _of_lists(pump: Pump) -> AsyncIterator[bytes]:
    async with pump.running():
        with pump.listen(lambda batch: batch.note) as listener:
            yield _AGAIN + message(event="changed", data=str(pump.version))
            async for chunk in _live(listener):
                yield chunk


async def _live(listener: Listener) -> AsyncIterator[bytes]:
    while (chunk := await listener.next()) is not None:
        yield chunk
