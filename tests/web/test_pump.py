"""One reader for all live streams: nothing is lost, nothing is read twice, who is slow is cut."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.stores import open_stores, plain_spec

from slidepack.daemon.changes import Changes
from slidepack.daemon.states import JobState
from slidepack.daemon.store.database import Row
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.engine.contract.events import AnyEvent, Progress, Started
from slidepack.web.pump import PAGE, Pump
from slidepack.web.streams import job_stream, queue_stream, shared_stream


class CountedRunLog(RunLog):
    """Knows how often events were asked for."""

    reads = 0

    def events_after(self, event_id: int, job_id: int | None, limit: int = 500) -> list[Row]:
        self.reads += 1
        return super().events_after(event_id, job_id, limit)


class Station:
    """A pump over a real database, and what makes it pump."""

    def __init__(self, folder: Path) -> None:
        self.stores = open_stores(folder)
        self.runlog = CountedRunLog(self.stores.database)
        self.changes = Changes()
        self.stopping = threading.Event()
        self.job = self.add_job()
        self.attempt = self.stores.add_attempt(self.job)
        self.steps = 0
        self.pump = Pump(
            changes=self.changes,
            jobs=self.stores.jobs,
            runlog=self.runlog,
            stopping=self.stopping,
        )

    def add_job(self) -> int:
        return self.stores.jobs.add(plain_spec(), 1.0).id

    def ingest(self, *events: AnyEvent) -> None:
        attempt = self.stores.attempt(self.job)
        self.stores.runlog.ingest(attempt, events, attempt.events_offset + 1)
        self.changes.bump_events()

    def train(self, steps: int) -> None:
        self.ingest(*(_progress(self.steps + number) for number in range(1, steps + 1)))
        self.steps += steps


@pytest.fixture
def station(tmp_path: Path) -> Station:
    return Station(tmp_path)


_STARTED = Started(
    pid=1,
    device="cpu",
    precision="fp32",
    total_steps=10,
    from_step=0,
    train_rows=1,
    eval_rows=1,
    trainable_params=1,
    attention="",
    at=1.0,
)


def _progress(step: int) -> Progress:
    return Progress(
        step=step,
        total_steps=10_000,
        loss=float(step),
        grad_norm=1.0,
        lr=0.1,
        tokens=8,
        supervised_tokens=4,
        tokens_per_second=10.0,
        eta_seconds=1.0,
        at=float(step),
    )


def _chunks(stream: Any) -> AsyncIterator[bytes]:
    chunks: AsyncIterator[bytes] = stream.iterator
    return chunks


async def _messages(stream: Any) -> AsyncIterator[dict[str, str]]:
    async for chunk in _chunks(stream):
        for block in chunk.decode().split("\n\n")[:-1]:
            fields = dict(line.partition(": ")[::2] for line in block.split("\n"))
            if "event" in fields:
                yield fields


async def _steps(stream: Any, last: int) -> list[int]:
    """Return the steps that a stream tells, up to the one that is waited for."""
    found = []
    async for message in _messages(stream):
        if message["event"] == "progress":
            found.append(int(json.loads(message["data"])["step"]))
            if found[-1] >= last:
                break
    return found


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


class BrokenOnce(JobStore):
    """Fails one look at the queue, as a disk may."""

    fails = False

    def signs(self) -> dict[int, str]:
        if self.fails:
            self.fails = False
            raise sqlite3.OperationalError("disk I/O error")
        return super().signs()


def test_what_a_failed_read_would_have_told_is_told_by_the_next(tmp_path: Path) -> None:
    station = Station(tmp_path)
    jobs = BrokenOnce(station.stores.database)
    pump = Pump(
        changes=station.changes,
        jobs=jobs,
        runlog=station.runlog,
        stopping=station.stopping,
    )

    async def change(told: AsyncIterator[dict[str, str]], state: JobState) -> Any:
        station.stores.jobs.move(station.job, state, state, 2.0)
        station.changes.bump()
        async for message in told:
            found = json.loads(message["data"]) if message["event"] == "changed" else {}
            if station.job in found.get("jobs", ()):
                return found["lists"]
        raise AssertionError("the stream has ended")

    async def work() -> None:
        told = _messages(shared_stream(pump, None))
        assert [(await anext(told))["event"] for _ in range(2)] == ["hello", "changed"]
        jobs.fails = True
        assert await change(told, "paused") is True
        assert not jobs.fails

    _run(work())


def test_every_stream_hears_every_step_once_and_the_database_is_read_once(
    station: Station,
) -> None:
    async def work() -> None:
        streams = [shared_stream(station.pump, None) for _ in range(20)]
        streams += [job_stream(station.pump, station.job, 0) for _ in range(20)]
        clients = [asyncio.create_task(_steps(stream, 30)) for stream in streams]
        while station.pump.listening < len(streams):
            await asyncio.sleep(0.01)
        for _ in range(3):
            handed_out = station.pump.last_id
            station.train(10)
            while station.pump.last_id == handed_out:
                await asyncio.sleep(0.01)
        assert [await client for client in clients] == [list(range(1, 31))] * len(streams)

    _run(work())
    assert station.runlog.reads < 10


def test_a_stream_replays_pages_of_what_was_missed_and_goes_on_without_a_gap(
    station: Station,
) -> None:
    missed = 3 * PAGE + 7
    station.train(missed)

    async def work() -> None:
        clients = [
            asyncio.create_task(_steps(stream, missed + 40))
            for stream in (
                shared_stream(station.pump, 0),
                job_stream(station.pump, station.job, 0),
                shared_stream(station.pump, PAGE + 3),
            )
        ]
        for _ in range(4):
            await asyncio.to_thread(station.train, 10)
        everything = list(range(1, missed + 41))
        assert [await client for client in clients] == [
            everything,
            everything,
            everything[PAGE + 3 :],
        ]

    _run(work())


def test_a_job_hears_nothing_of_another(station: Station) -> None:
    other = station.add_job()

    async def work() -> None:
        stream = job_stream(station.pump, other, 0)
        client = asyncio.create_task(_all(stream))
        while not station.pump.listening:
            await asyncio.sleep(0.01)
        station.train(5)
        station.stores.jobs.explain(station.job, "waits for something else")
        station.stores.jobs.explain(other, "waits too")
        station.changes.bump()
        while station.pump.last_id < 5:
            await asyncio.sleep(0.01)
        station.stopping.set()
        told = await client
        assert [message["event"] for message in told] == ["changed", "changed"]

    _run(work())


async def _all(stream: Any) -> list[dict[str, str]]:
    return [message async for message in _messages(stream)]


def test_changed_names_the_jobs_that_stand_otherwise(station: Station) -> None:
    async def work() -> None:
        client = asyncio.create_task(_all(shared_stream(station.pump, None)))
        notes = asyncio.create_task(_all(queue_stream(station.pump)))
        while station.pump.listening < 2:
            await asyncio.sleep(0.01)
        station.ingest(_STARTED)
        while station.pump.last_id < 1:
            await asyncio.sleep(0.01)
        station.train(1)
        while station.pump.last_id < 2:
            await asyncio.sleep(0.01)
        station.stopping.set()
        told = [json.loads(m["data"]) for m in await client if m["event"] == "changed"]
        assert told == [
            {"jobs": [], "lists": True},
            {"jobs": [station.job], "lists": True},
            {"jobs": [], "lists": False},
        ]
        assert len(await notes) == 3

    _run(work())


def test_who_does_not_read_is_cut_and_gets_the_rest_when_it_comes_again(station: Station) -> None:
    async def work() -> None:
        slow = _messages(shared_stream(station.pump, None))
        hello = await anext(slow)
        assert hello["event"] == "hello"
        await anext(slow)
        while not station.pump.listening:
            await asyncio.sleep(0.01)
        quick = asyncio.create_task(_steps(shared_stream(station.pump, None), 80 * PAGE))
        while station.pump.listening < 2:
            await asyncio.sleep(0.01)
        for _ in range(8):
            await asyncio.to_thread(station.train, 10 * PAGE)
        assert await quick == list(range(1, 80 * PAGE + 1))
        left = [message async for message in slow]
        # What was queued for it is let go, so that it holds no memory.
        assert left == []
        again = await _steps(shared_stream(station.pump, int(hello["data"])), 80 * PAGE)
        assert again == list(range(1, 80 * PAGE + 1))

    _run(work())


def test_streams_end_when_the_daemon_stops_and_the_pump_rests_without_them(
    station: Station,
) -> None:
    async def work() -> None:
        first = asyncio.create_task(_steps(shared_stream(station.pump, None), 3))
        while not station.pump.listening:
            await asyncio.sleep(0.01)
        station.train(3)
        assert await first == [1, 2, 3]
        while station.pump.listening:
            await asyncio.sleep(0.01)
        # Nobody listens: these are found by the next stream in the database.
        station.train(3)
        later = asyncio.create_task(_steps(shared_stream(station.pump, 3), 6))
        assert await later == [4, 5, 6]
        last = asyncio.create_task(_all(queue_stream(station.pump)))
        while not station.pump.listening:
            await asyncio.sleep(0.01)
        station.stopping.set()
        assert await last
        assert await _all(queue_stream(station.pump)), "it says where things stand, and ends"

    _run(work())
