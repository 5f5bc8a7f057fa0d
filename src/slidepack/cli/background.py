"""A daemon in the background, for the demo: found, or started and stopped again."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from slidepack.cli.client import DaemonClient
from slidepack.daemon.settings import HOME_VARIABLE
from slidepack.engine.contract.errors import SlidepackError, code_of_exit

_START_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05


@contextmanager
def running_daemon(
    home: Path, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[DaemonClient, subprocess.Popen[bytes] | None]]:
    """Yield a client of the daemon of `home`, and the process where this call started it.

    A daemon that was started here is stopped at the end: its jobs checkpoint and stay queued.

    Raises:
        SlidepackError: the daemon does not start.
    """
    running = _answering(home)
    if running is not None:
        yield running, None
        return
    home.mkdir(parents=True, exist_ok=True)
    log_path = home / "daemon.log"
    child: subprocess.Popen[bytes] | None = None
    try:
        with log_path.open("ab") as log, _ctrl_c_held_back():
            # A session of its own: Ctrl-C in the terminal reaches this process only, which then
            # stops the daemon in good order.
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "slidepack.web"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**environment, HOME_VARIABLE: str(home)},
                start_new_session=True,
            )
        yield _wait_until_ready(home, child, log_path), child
    finally:
        if child is not None:
            child.terminate()
            child.wait()


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Let no Ctrl-C fall between the start of a process and the moment that it is known.

    It is raised at the end instead, where the caller can already end the process.
    """
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _answering(home: Path) -> DaemonClient | None:
    """Return a client of the daemon of `home`, or None where none answers."""
    try:
        client = DaemonClient(home)
        client.get("/health")
    except SlidepackError:
        return None
    return client


def _wait_until_ready(home: Path, child: subprocess.Popen[bytes], log_path: Path) -> DaemonClient:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        client = _answering(home)
        if client is not None:
            return client
        time.sleep(_POLL_SECONDS)
    lines = log_path.read_text("utf-8", "replace").strip().splitlines()
    code = code_of_exit(child.returncode) if child.returncode else None
    raise SlidepackError(
        code or "DAEMON-NOT-RUNNING",
        "The daemon did not start.",
        why=lines[-1] if lines else "it said nothing",
        fix=f"See {log_path}.",
    )
