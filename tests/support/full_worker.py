"""Workers as real processes, forked from one that has torch loaded: a start takes no seconds."""

import atexit
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from slidepack.engine.contract.events import (
    AnyEvent,
    Evaluated,
    Progress,
    decode_event,
)
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.worker.__main__ import main
from slidepack.engine.worker.eventlog import EventLog

_PATIENCE: Final = 300.0
"""That of `support.waiting`, which this file does not find where it is run by itself."""


class Worker:
    """One worker; it is the server's child, so the server says how it ended."""

    def __init__(self, server: "subprocess.Popen[str]", pid: int, *, halts: bool) -> None:
        """Wrap a process that was just forked."""
        self._server = server
        self._pid = pid
        self._halts = halts
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        if self._code is None:
            answer = _ask(self._server, f"poll {self._pid}")
            self._code = None if answer == "runs" else int(answer)
        return self._code

    def wait(self, seconds: float = _PATIENCE) -> int:
        """Wait for its end and return the exit code."""
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"the worker still runs after {seconds:g} s"
            time.sleep(0.01)
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it is known to have ended; one that stands still goes on."""
        while self._halts and not self._stands_still():
            time.sleep(0.01)
        self._halts = False
        if self.poll() is None:
            os.kill(self._pid, number)
            os.kill(self._pid, signal.SIGCONT)

    def _stands_still(self) -> bool:
        if self.poll() is not None:
            return True
        return psutil.Process(self._pid).status() == psutil.STATUS_STOPPED


def start(folder: RunFolder, *, halt_at: int = 0) -> Worker:
    """Start a worker on a run folder.

    Args:
        folder: of a run, or of a pack.
        halt_at: the step, of any lane, after which it stands still until it is sent a signal; so a
            test that does something in the middle of a run cannot come too late. 0 for none.
    """
    server = _server()
    pid = int(_ask(server, f"start {halt_at} {folder.root}"))
    return Worker(server, pid, halts=halt_at > 0)


def finish(folder: RunFolder) -> None:
    """Run a worker to its end; it must succeed."""
    code = start(folder).wait()
    assert code == 0, folder.log.read_text()


def events_of(folder: RunFolder) -> list[AnyEvent]:
    """Return a run's events; the last line of a killed one may be torn."""
    if not folder.events.exists():
        return []
    lines = folder.events.read_bytes().splitlines(keepends=True)
    return [decode_event(line) for line in lines if line.endswith(b"\n")]


def curve(*attempts: RunFolder) -> dict[int, tuple[object, ...]]:
    """Return what is exact about each step; a step that was done again must have come out same."""
    points: dict[int, tuple[object, ...]] = {}
    for folder in attempts:
        for event in events_of(folder):
            if isinstance(event, Progress):
                point = (event.loss, event.grad_norm, event.lr, event.tokens)
                assert points.setdefault(event.step, point) == point, (folder.root, event)
    return points


def held_out(*attempts: RunFolder) -> dict[int, float | None]:
    """Return the held-out losses by step."""
    losses: dict[int, float | None] = {}
    for folder in attempts:
        for event in events_of(folder):
            if isinstance(event, Evaluated):
                assert losses.setdefault(event.step, event.loss) == event.loss, folder.root
    return losses


def assert_same_end(whole: RunFolder, *attempts: RunFolder) -> None:
    """Hold a run in attempts to an uninterrupted one, bit for bit.

    That is every step's loss and norm, the held-out losses, the result's weights, and the last
    checkpoint's weights and moments.
    """
    assert curve(*attempts) == curve(whole)
    assert held_out(*attempts) == held_out(whole)
    last = attempts[-1]
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        one, other = (folder.result / "model" / name for folder in (last, whole))
        assert one.read_bytes() == other.read_bytes(), name
    assert _newest_state(*attempts) == _newest_state(whole)


def _newest_state(*attempts: RunFolder) -> tuple[str, dict[str, bytes]]:
    """Return the newest checkpoint's name, and its tensor files: one a unit."""
    # An attempt that only had the result left to write made no checkpoint.
    newest = next(path for one in reversed(attempts) for path in one.list_checkpoints())
    files = {path.name: path.read_bytes() for path in newest.glob("*.safetensors")}
    assert files
    return newest.name, files


@functools.cache
def _server() -> "subprocess.Popen[str]":
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
    )
    atexit.register(_close, server)
    return server


def _close(server: "subprocess.Popen[str]") -> None:
    server.communicate()


def _ask(server: "subprocess.Popen[str]", question: str) -> str:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(question + "\n")
    server.stdin.flush()
    answer = server.stdout.readline().strip()
    assert answer, "the server of workers has ended"
    return answer


def _serve() -> None:
    """Answer `start STEP FOLDER` by a pid, and `poll PID` by `runs` or the exit code."""
    while question := sys.stdin.readline():
        command, _, argument = question.rstrip("\n").partition(" ")
        if command == "start":
            pid = os.fork()
            if not pid:
                step, _, folder = argument.partition(" ")
                if int(step):
                    _halt_at(int(step))
                _become_worker(Path(folder))
            answer = str(pid)
        else:
            pid, status = os.waitpid(int(argument), os.WNOHANG)
            answer = str(os.waitstatus_to_exitcode(status)) if pid else "runs"
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def _halt_at(step: int) -> None:
    append = EventLog.append
    ahead = [step]

    def append_and_halt(log: EventLog, event: AnyEvent) -> None:
        append(log, event)
        if isinstance(event, Progress) and event.step in ahead:
            ahead.clear()
            os.kill(os.getpid(), signal.SIGSTOP)

    EventLog.append = append_and_halt  # type: ignore[assignment, method-assign]  # in a process of its own


def _become_worker(folder: Path) -> None:
    log = os.open(folder / "worker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    code = main([str(folder)])
    # Taking down what the server had loaded would take longer than the run.
    os._exit(code)


if __name__ == "__main__":
    _serve()
