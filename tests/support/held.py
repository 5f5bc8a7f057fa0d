"""Stops a process for a while, so that what a test does meanwhile comes before what it would do."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from support.daemons import DaemonProcess
from support.waiting import wait_until


def child(daemon: DaemonProcess, module: str) -> psutil.Process:
    """Wait for the daemon's newest process that runs `module`, and return it."""

    def found() -> psutil.Process | None:
        assert daemon.process is not None
        children = psutil.Process(daemon.process.pid).children()
        mine = []
        for process in children:
            with suppress(psutil.Error):
                if module in process.cmdline():
                    mine.append(process)
        return max(mine, key=psutil.Process.create_time, default=None)

    process = wait_until(found, what=f"the daemon runs {module}")
    assert process is not None
    return process


@contextmanager
def held(process: psutil.Process) -> Iterator[None]:
    """Let the process do nothing until the block ends."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
