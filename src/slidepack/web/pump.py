"""Reads what happened once, for every live stream there is."""

import asyncio
import functools
import logging
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from slidepack.daemon.changes import Changes
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.batches import CHART_EVENTS, Batch, alive, make_batch

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.2
_KEEP_ALIVE_SECONDS: Final = 15.0
PAGE: Final = 200
"""Events that are read, and held in memory, at a time."""
_PATIENCE: Final = 64
"""Batches that a client may be behind; one that is further behind is cut, and comes again."""

Pick = Callable[[Batch], bytes]


class Listener:
    """One stream's place in the pump: a bounded queue of bytes."""

    def __init__(self, pick: Pick) -> None:
        """Say which of a batch's bytes are wanted."""
        self._pick = pick
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(_PATIENCE)
        self.cut = False
        """Whether nothing more comes."""

    def offer(self, batch: Batch) -> None:
        """Queue what is wanted of a batch."""
        chunk = self._pick(batch)
        if not chunk or self.cut:
            return
        if self._queue.full():
            self.end()
        else:
            self._queue.put_nowait(chunk)

    def end(self) -> None:
        """Let the stream end; what it has not sent yet is dropped, to be asked for again."""
        self.cut = True
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    async def next(self) -> bytes | None:
        """Return the next bytes, or None where the stream is over."""
        return await self._queue.get()


class Pump:
    """Runs while there are streams; the database is read once a change, however many there are.

    Everything but the reading happens in the event loop's thread.
    """

    def __init__(
        self, *, changes: Changes, jobs: JobStore, runlog: RunLog, stopping: threading.Event
    ) -> None:
        """Bind what is read; nothing runs before the first stream.

        Args:
            changes: says that there is something to read.
            jobs: the jobs.
            runlog: their events.
            stopping: set while the daemon ends; every stream then ends too.
        """
        self._changes = changes
        self._jobs = jobs
        self._runlog = runlog
        self._stopping = stopping
        self._listeners: set[Listener] = set()
        self._streams = 0
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._signs: dict[int, str] = {}
        self._untold = 0
        self._problem = ""
        self.last_id = 0
        """Of the newest event that was handed out, or was there before the first stream."""

    @property
    def listening(self) -> int:
        """How many streams wait for what comes next."""
        return len(self._listeners)

    @property
    def version(self) -> int:
        """The count of changes."""
        return self._changes.version

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the pump running, and `last_id` growing, for the length of the block."""
        self._streams += 1
        try:
            if self._task is None or self._task.done():
                self._ready = asyncio.Event()
                self._task = asyncio.create_task(self._run(self._ready))
            await self._ready.wait()
            yield
        finally:
            self._streams -= 1

    @contextmanager
    def listen(self, pick: Pick) -> Iterator[Listener]:
        """Hand out every batch from now on, for the length of the block, inside `running`."""
        listener = Listener(pick)
        self._listeners.add(listener)
        if self._stopping.is_set():
            listener.end()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def missed(self, after: int, job_id: int | None) -> AsyncIterator[Batch]:
        """Yield what was stored after an id, a page at a time, up to what is handed out.

        Nothing is awaited between the last look at `last_id` and the end: who listens then has no
        gap.

        Args:
            after: id of an event.
            job_id: whose events; None is everybody's.
        """
        while after < (newest := self.last_id):
            rows = await asyncio.to_thread(self._runlog.events_after, after, job_id, PAGE)
            rows = [row for row in rows if row["id"] <= newest]
            if not rows:
                after = newest
                continue
            batch = await asyncio.to_thread(make_batch, rows, last_id=after)
            after = batch.last_id
            yield batch

    async def state_of(self, job_id: int) -> str:
        """Return a job's state; empty where there is no such job."""
        states = await asyncio.to_thread(self._jobs.states_of, [job_id])
        return states.get(job_id, "")

    async def _run(self, ready: asyncio.Event) -> None:
        seen = self._changes.version
        while self._needed() and not await self._works(self._begin):
            await asyncio.sleep(_POLL_SECONDS)
        ready.set()
        quiet_since = time.monotonic()
        while self._needed():
            version = self._changes.version
            if version != seen and await self._works(functools.partial(self._read, version)):
                seen, quiet_since = version, time.monotonic()
            elif time.monotonic() - quiet_since >= _KEEP_ALIVE_SECONDS:
                self._hand_out(alive(self.last_id))
                quiet_since = time.monotonic()
            await asyncio.sleep(_POLL_SECONDS)
        for listener in tuple(self._listeners):
            listener.end()

    def _needed(self) -> bool:
        return self._streams > 0 and not self._stopping.is_set()

    async def _begin(self) -> None:
        self._untold = self._changes.untold
        self._signs = await asyncio.to_thread(self._jobs.signs)
        self.last_id = await asyncio.to_thread(self._runlog.last_event_id)

    async def _read(self, version: int) -> None:
        untold = self._changes.untold
        lists = untold != self._untold
        full = True
        while full:
            batch, full = await asyncio.to_thread(self._page, lists, version)
            # Told from now on: what a failed read swallows is told by the next.
            self._untold, lists = untold, False
            self._hand_out(batch)

    def _page(self, lists: bool, version: int) -> tuple[Batch, bool]:
        rows = self._runlog.events_after(self.last_id, None, PAGE)
        # Steps alone move no job, and a long queue costs something to look at.
        moves = lists or any(row["type"] not in CHART_EVENTS for row in rows)
        batch = make_batch(
            rows,
            last_id=self.last_id,
            states=self._moved() if moves else {},
            lists=lists,
            version=version,
        )
        return batch, len(rows) == PAGE

    def _moved(self) -> dict[int, str]:
        """Return the states of the jobs that stand otherwise than at the last look."""
        before, signs = self._signs, self._jobs.signs()
        differ = {
            number
            for number in before.keys() | signs.keys()
            if before.get(number) != signs.get(number)
        }
        states: dict[int, str] = dict(self._jobs.states_of(differ)) if differ else {}
        self._signs = signs
        return states

    def _hand_out(self, batch: Batch) -> None:
        self.last_id = batch.last_id
        for listener in tuple(self._listeners):
            listener.offer(batch)

    async def _works(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do a part and return whether it succeeded; the same problem is logged once."""
        try:
            await work()
        except (SlidepackError, sqlite3.Error) as error:
            if repr(error) != self._problem:
                logger.error("Live streams: %s", error)
            self._problem = repr(error)
            return False
        self._problem = ""
        return True
