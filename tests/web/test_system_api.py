"""The machine around the queue over the API of a real daemon."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.daemons import DaemonProcess
from support.waiting import PATIENCE


@contextmanager
def _busy(home: Path) -> Iterator[None]:
    """Another program writes to the daemon's database for as long as the block takes."""
    with closing(sqlite3.connect(home / "slidepack.db", timeout=20, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.full
def test_what_is_read_waits_for_nothing_that_is_written(daemon: DaemonProcess) -> None:
    with ThreadPoolExecutor(4) as pool:
        with _busy(daemon.home):
            writes: list[Future[Any]] = [
                pool.submit(daemon.api, "PUT", "/queue/end", json={"action": "nothing"}),
                pool.submit(daemon.api, "POST", "/queue/pause"),
                pool.submit(daemon.api, "POST", "/queue/resume"),
            ]
            # Whether or not they are in yet: none can be done.
            assert not wait(writes, timeout=0.5).done
            for path in ("/queue/end", "/policy/state", "/policy", "/system/sleep", "/jobs"):
                pool.submit(daemon.api, "GET", path).result(20)
            with daemon.http() as client:
                for path in ("/", "/metrics"):
                    assert client.get(path, timeout=PATIENCE).status_code == 200, path
            assert not any(write.done() for write in writes)
        for write in writes:
            write.result(30)
    assert daemon.api("GET", "/queue/end")["phase"] == "off"
    assert "Traceback" not in daemon.log
