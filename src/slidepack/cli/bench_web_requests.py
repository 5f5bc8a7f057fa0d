"""Requests to the daemon, one after the other, and a large upload: for `slidepack bench web`."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
import psutil

from slidepack.cli.bench_jobs import cpu_seconds

__all__ = ["Times", "Uploaded", "rows_from", "times_of", "upload"]

_PIECE_BYTES: Final = 32 << 20
"""As the page sends them."""
_CHUNK_BYTES: Final = 1 << 20
_ROW: Final = (
    b'{"prompt": "What does the river say to the stone that lies in its way for a thousand years?",'
    b' "completion": "Nothing that it has not said before, and the stone grows round of it."}\n'
)
_BLOCK: Final = _ROW * (2 + _CHUNK_BYTES // len(_ROW))
_WARM_UP: Final = 5
_WATCH_SECONDS: Final = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """What requests took, in seconds."""

    median: float
    p95: float
    cpu: float
    """Of the daemon, for one: also what its other threads did meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uploaded:
    """What an upload cost."""

    seconds: float
    growth_bytes: int
    """Most that the daemon's resident set was above what it had been before."""


def times_of(http: httpx.Client, process: psutil.Process, path: str, count: int) -> Times:
    """Get a path again and again on one connection, and return what an answer takes.

    Args:
        http: logged in.
        process: of the daemon.
        path: of the daemon.
        count: requests that count, at least 2; a few come before them.

    Raises:
        HTTPStatusError: the daemon refused.
    """
    for _ in range(_WARM_UP):
        http.get(path).raise_for_status()
    times, before = [], cpu_seconds(process)
    for _ in range(count):
        begun = time.monotonic()
        http.get(path).raise_for_status()
        times.append(time.monotonic() - begun)
    return Times(
        median=statistics.median(times),
        p95=statistics.quantiles(times, n=20, method="inclusive")[-1],
        cpu=(cpu_seconds(process) - before) / count,
    )


def upload(http: httpx.Client, process: psutil.Process, num_bytes: int) -> Uploaded:
    """Send rows in pieces, as the page does, and drop them before they are checked.

    Args:
        http: logged in.
        process: of the daemon.
        num_bytes: of the file, a little less of which is sent: whole rows.

    Raises:
        HTTPStatusError: the daemon refused.
    """
    size = max(1, num_bytes // len(_ROW)) * len(_ROW)
    announced = {"files": [{"name": "rows.jsonl", "bytes": size}]}
    draft = _sent(http, "POST", "/api/v1/datasets/uploads", json=announced)
    place = f"/api/v1/datasets/uploads/{draft['id']}"
    before, begun = process.memory_info().rss, time.monotonic()
    with _most_resident(process) as most:
        for offset in range(0, size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, size - offset)
            draft = _sent(
                http,
                "PUT",
                f"{place}/files/0",
                params={"offset": offset},
                content=rows_from(offset, length),
                headers={"content-length": str(length)},
            )
    seconds = time.monotonic() - begun
    assert draft["files"][0]["received"] == size
    http.delete(place).raise_for_status()
    return Uploaded(seconds=seconds, growth_bytes=max(most) - before)


def _sent(http: httpx.Client, method: str, path: str, **arguments: Any) -> Any:
    return http.request(method, path, **arguments).raise_for_status().json()


def rows_from(offset: int, length: int) -> Iterator[bytes]:
    """Yield a part of an endless file of rows."""
    end = offset + length
    while offset < end:
        begin = offset % len(_ROW)
        chunk = _BLOCK[begin : begin + min(_CHUNK_BYTES, end - offset)]
        offset += len(chunk)
        yield chunk


@contextmanager
def _most_resident(process: psutil.Process) -> Iterator[list[int]]:
    """Look at a process's resident set all the time; the list has what was seen."""
    seen = [process.memory_info().rss]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_WATCH_SECONDS):
            seen.append(process.memory_info().rss)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
