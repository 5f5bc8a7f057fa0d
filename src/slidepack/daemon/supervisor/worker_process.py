"""Starts, finds and signals worker processes.

A worker is known by the random nonce in its environment, its start time and the boot it belongs to,
so a daemon that was restarted finds its worker again and can never take a recycled pid for one.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from slidepack.daemon.system.sd_notify import without_service_variables
from slidepack.engine.contract.pack import PackFolder
from slidepack.engine.contract.runfolder import NONCE_VARIABLE, RunFolder

_SECRET_VARIABLES: Final = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"})
"""A worker loads local files only, so it never needs them."""
_PROC: Final = Path("/proc")


class WorkerProcess:
    """One worker, started here or found again."""

    def __init__(self, process: psutil.Process, child: subprocess.Popen[bytes] | None) -> None:
        """Wrap a running process; `child` where this daemon started it."""
        self._process = process
        self._child = child
        self._terminated_at: float | None = None
        self.started_ticks = start_ticks(process.pid)
        """When it started, in clock ticks since the boot; None where it has ended already."""

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs or where another process saw it."""
        return None if self._child is None else self._child.poll()

    def is_running(self) -> bool:
        """Return whether it still runs."""
        if self._child is not None:
            return self._child.poll() is None
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def terminate(self) -> None:
        """Ask it, once, to checkpoint and leave."""
        if self._terminated_at is None:
            self._terminated_at = time.monotonic()
            self._signal(signal.SIGTERM)

    def seconds_since_terminated(self) -> float:
        """Return how long ago `terminate` was called, 0 where it was not."""
        return 0.0 if self._terminated_at is None else time.monotonic() - self._terminated_at

    def leave_seconds(self) -> float | None:
        """Return how long it took, up to now, to leave; None where nobody asked it to."""
        return None if self._terminated_at is None else self.seconds_since_terminated()

    def kill(self) -> None:
        """End it and whatever it started."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        # Each worker leads a process group of its own. psutil compares start times before it
        # touches a pid, so a recycled one is left alone.
        if not self.is_running():
            return
        try:
            if number == signal.SIGKILL:
                os.killpg(self.pid, number)
            else:
                self._process.send_signal(number)
        except (ProcessLookupError, psutil.NoSuchProcess):
            return


def start_worker(folder: RunFolder | PackFolder, nonce: str) -> WorkerProcess:
    """Start a worker on a run folder or a pack's, in a session of its own.

    Raises:
        OSError: the process could not be started.
    """
    with folder.log.open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "slidepack.engine.worker", str(folder.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=worker_environment(nonce),
            start_new_session=True,
            cwd=folder.root,
        )
    return WorkerProcess(psutil.Process(child.pid), child)


def worker_environment(nonce: str) -> dict[str, str]:
    """Return the environment of a process of ours that is known by a nonce."""
    inherited = without_service_variables()
    environment = {k: v for k, v in inherited.items() if k not in _SECRET_VARIABLES}
    return environment | {
        NONCE_VARIABLE: nonce,
        # Spinning OpenMP threads slow a step up to ten times as soon as anything else runs.
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONUTF8": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def find_worker(
    nonce: str, *, pid: int | None = None, started_ticks: int | None = None, boot_id: str = ""
) -> WorkerProcess | None:
    """Return the running process that carries the nonce, or None.

    Args:
        nonce: in its environment.
        pid: where it was last known to be; None where its daemon died before it could say.
        started_ticks: of that process.
        boot_id: of that process; a worker of an earlier boot is gone.
    """
    if boot_id and boot_id != current_boot_id():
        return None
    if pid is not None and started_ticks is not None:
        return _worker_at(pid, nonce) if start_ticks(pid) == started_ticks else None
    for number in psutil.pids():
        found = _worker_at(number, nonce)
        if found is not None:
            return found
    return None


def current_boot_id(proc_root: Path = _PROC) -> str:
    """Return the kernel's name of this boot; empty where it has none."""
    try:
        return (proc_root / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def start_ticks(pid: int, proc_root: Path = _PROC) -> int | None:
    """Return when a process started, in clock ticks since the boot; None where there is none.

    Unlike a time of day, it does not change when the clock is set.
    """
    try:
        text = (proc_root / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The name in brackets may hold anything; field 22 is counted from behind it.
    return int(text.rpartition(")")[2].split()[19])


def _worker_at(pid: int, nonce: str) -> WorkerProcess | None:
    marker = f"{NONCE_VARIABLE}={nonce}\0".encode()
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
        # What a worker starts inherits its environment; only the worker leads a group.
        if marker not in environment + b"\0" or not _leads_group(pid):
            return None
        found = WorkerProcess(psutil.Process(pid), None)
    except (OSError, psutil.NoSuchProcess):
        # Another user's process, or one that just ended.
        return None
    return found if found.is_running() else None


def _leads_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False
