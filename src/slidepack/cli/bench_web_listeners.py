"""Many pages that listen to the daemon at once: for `slidepack bench web`."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import httpx
import msgspec
import psutil

from slidepack.cli.bench_jobs import cpu_seconds
from slidepack.cli.server_events import EventReader
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["Heard", "listen"]

_PATIENCE_SECONDS: Final = 60.0
"""For all to hear something, and to hear the last of it."""
_POLL_SECONDS: Final = 0.05


class _Step(msgspec.Struct):
    """What a listener needs of a step's event."""

    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """What it cost, and what came."""

    seconds: float
    cpu_share: float
    """Of a core."""
    resident_bytes: int
    """Of the daemon, at the end."""
    events: int
    """Steps that every listener should have heard."""
    listeners_short: int
    """That missed a step, or heard one twice or out of its order."""


@dataclass(slots=True)
class _Listener:
    steps: list[int] = field(default_factory=list)


def listen(url: str, token: str, process: psutil.Process, *, clients: int, seconds: float) -> Heard:
    """Listen to all jobs, of which one trains, with many clients at once.

    Args:
        url: of the daemon.
        token: of its API.
        process: of the daemon.
        clients: that listen.
        seconds: for which they do, from when all have heard something.

    Raises:
        SlidepackError: RUN-CRASHED: a listener heard nothing at all.
    """
    return asyncio.run(_listen(url, token, process, clients=clients, seconds=seconds))


async def _listen(
    url: str, token: str, process: psutil.Process, *, clients: int, seconds: float
) -> Heard:
    listeners = [_Listener() for _ in range(clients)]
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=url,
                headers={"authorization": f"Bearer {token}"},
                timeout=httpx.Timeout(None),
                limits=httpx.Limits(max_connections=None),
                trust_env=False,
            )
        )
        tasks = [asyncio.create_task(_follow(http, listener)) for listener in listeners]
        stack.push_async_callback(_end, tasks)
        pairs = list(zip(tasks, listeners, strict=True))
        await _until(lambda: all(task.done() or one.steps for task, one in pairs))
        if not all(listener.steps for listener in listeners):
            raise _silent(tasks)
        first = max(listener.steps[0] for listener in listeners)
        before, begun = cpu_seconds(process), time.monotonic()
        await asyncio.sleep(seconds)
        used, took = cpu_seconds(process) - before, time.monotonic() - begun
        last = max(listener.steps[-1] for listener in listeners)
        await _until(lambda: all(task.done() or one.steps[-1] >= last for task, one in pairs))
    wanted = list(range(first, last + 1))
    heard = ([step for step in one.steps if first <= step <= last] for one in listeners)
    return Heard(
        seconds=took,
        cpu_share=used / took,
        resident_bytes=process.memory_info().rss,
        events=len(wanted),
        listeners_short=sum(steps != wanted for steps in heard),
    )


async def _follow(http: httpx.AsyncClient, listener: _Listener) -> None:
    async with http.stream("GET", "/api/v1/events") as response:
        response.raise_for_status()
        reader = EventReader()
        async for chunk in response.aiter_bytes():
            for name, data in reader.feed(chunk):
                if name == "progress":
                    listener.steps.append(msgspec.json.decode(data, type=_Step).step)


async def _until(reached: Callable[[], bool]) -> None:
    """Wait, but not for ever."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not reached() and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _silent(tasks: Sequence[asyncio.Task[None]]) -> SlidepackError:
    ended = [task for task in tasks if task.done()]
    problem = repr(ended[0].exception()) if ended else "no step came"
    return SlidepackError(
        "RUN-CRASHED",
        "Not every listener heard the job that trains.",
        why=f"{problem}; {len(ended)} of {len(tasks)} streams ended",
        fix="Give fewer with --clients, or allow more open files with `ulimit -n`.",
    )
