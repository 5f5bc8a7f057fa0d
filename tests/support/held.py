"""Stops a process for a while, so that what a test does meanwhile comes before what it would do."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from support.daemons import DaemonProcess
from support.waiting import wait_until


def child(daemon: DaemonProcess, module: str) -> psutil.Process:
    """Wait for the daemon's newest process that runs `module`, and return it."""

    def found() -> psutil.Process | None:
        return max(_children(daemon, module), key=psutil.Process.create_time, default=None)

    process = wait_until(found, what=f"the daemon runs {module}")
    assert process is not None
    return process


def _children(daemon: DaemonProcess, module: str) -> list[psutil.Process]:
    assert daemon.process is not None
    mine = []
    for process in psutil.Process(daemon.process.pid).children():
        with suppress(psutil.Error):
            if module in process.cmdline():
                mine.append(process)
    return mine


@contextmanager
def held(process: psutil.Process) -> Iterator[None]:
    """Let the process do nothing until the block ends."""
    process.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process does nothing any more, be it that nobody has asked for its end."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Births:
    """Every new process of a kind is stopped as soon as there is one; the block's end lets them go.

    Made before whatever starts one, it leaves no time in which it could be done.
    """

    def __init__(self, daemon: DaemonProcess, module: str) -> None:
        """Know which ones there are already."""
        self._daemon = daemon
        self._module = module
        self._known = {process.pid for process in _children(daemon, module)}
        self._born: list[psutil.Process] = []
        self._told = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Births":
        """Begin to look, beside what the block does."""
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """Let them go."""
        self._over.set()
        self._thread.join()
        for process in self._born:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def next(self) -> psutil.Process:
        """Wait until another one is there and stopped, and return it."""
        wait_until(lambda: len(self._born) > self._told, what=f"the daemon runs {self._module}")
        self._told += 1
        return self._born[self._told - 1]

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            with suppress(psutil.Error):
                for process in _children(self._daemon, self._module):
                    if process.pid not in self._known:
                        process.suspend()
                        self._known.add(process.pid)
                        self._born.append(process)
