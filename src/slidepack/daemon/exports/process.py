"""The exporter's process: started as a child, followed through a pipe, found again by its nonce.

The pipe is a lifeline too: an exporter whose daemon died fails at its next line, and removes what
it had made.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec
import psutil

from slidepack.daemon.supervisor.worker_process import WorkerProcess, find_worker
from slidepack.daemon.system.sd_notify import without_service_variables
from slidepack.engine.contract.runfolder import NONCE_VARIABLE, write_atomic
from slidepack.engine.export.contract import (
    ExportFailed,
    ExportProgress,
    ExportRequest,
    ExportResult,
    decode_line,
)

__all__ = ["ExportProcess", "end_orphan", "start_export"]

_NICE: Final = 19
_READ_BYTES: Final = 1 << 16
_ORPHAN_SECONDS: Final = 10.0
_SECRETS: Final = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN")
_LOG: Final = "export.log"
_LOG_TAIL_BYTES: Final = 4096


class ExportProcess:
    """One exporter that this daemon started."""

    def __init__(self, child: "subprocess.Popen[bytes]", home: Path) -> None:
        """Follow a child whose standard output is a pipe."""
        assert child.stdout is not None
        self._child = child
        self._worker = WorkerProcess(psutil.Process(child.pid), child)
        self._pipe = child.stdout.fileno()
        os.set_blocking(self._pipe, False)
        self._unread = b""
        self._home = home
        self.progress: ExportProgress | None = None
        self.outcome: ExportResult | ExportFailed | None = None
        """Its last line; None until it came, and for good where it died before."""

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def has_ended(self) -> bool:
        """Read what it said since the last look, and return whether it has ended."""
        # Asked first: what an ended process wrote is in the pipe by then.
        ended = self._child.poll() is not None
        self._read()
        if ended:
            self.close()
        return ended

    def how_it_died(self) -> str:
        """Return its exit code and the last line of its log."""
        code = self._child.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = _last_line(self._home / _LOG)
        return f"{how}: {last}" if last else how

    def ask_to_leave(self, seconds: float) -> None:
        """Ask it once to end; kill it and whatever it started once that took too long."""
        self._worker.terminate()
        if self._worker.seconds_since_terminated() > seconds:
            self._worker.kill()

    def stop(self, seconds: float) -> None:
        """End it and wait until it is gone; what it still said is read."""
        self._worker.terminate()
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                self._worker.kill()
                self._child.wait()
            time.sleep(0.02)

    def close(self) -> None:
        """Let go of the pipe."""
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._pipe = -1

    def _read(self) -> None:
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            read = decode_line(line)
        except msgspec.DecodeError:
            # A process that was killed may leave half a line, with another one's start behind it.
            return
        if isinstance(read, ExportProgress):
            self.progress = read
        else:
            self.outcome = read


def start_export(
    home: Path, request: ExportRequest, nonce: str, threads: int | None
) -> ExportProcess:
    """Start an exporter with the lowest priority, on the CPU alone, in a session of its own.

    Args:
        home: the export's own folder, which exists.
        request: what it is to make.
        nonce: by which it is found again.
        threads: it may compute with; None leaves that to torch.

    Raises:
        OSError: the process could not be started, or the disk refused its request.
    """
    path = home / "request.json"
    write_atomic(path, msgspec.json.encode(request))
    inherited = without_service_variables()
    environment = {k: v for k, v in inherited.items() if k not in _SECRETS} | {
        NONCE_VARIABLE: nonce,
        "PYTHONUTF8": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        # A context on a card takes memory that a run was promised.
        "CUDA_VISIBLE_DEVICES": "-1",
        "HIP_VISIBLE_DEVICES": "-1",
    }
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with (home / _LOG).open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "slidepack.engine.export", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
            cwd=home,
        )
    # It has one thread yet, and those that it starts inherit this.
    os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
    return ExportProcess(child, home)


def end_orphan(nonce: str) -> None:
    """Kill the exporter of a daemon that died, where it still runs, and wait until it is gone.

    Raises:
        psutil.TimeoutExpired: it does not end; a disk may hold it.
    """
    orphan = find_worker(nonce)
    if orphan is None:
        return
    orphan.kill()
    try:
        psutil.Process(orphan.pid).wait(_ORPHAN_SECONDS)
    except psutil.NoSuchProcess:
        return


def _last_line(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""
