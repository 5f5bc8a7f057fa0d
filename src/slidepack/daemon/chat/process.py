"""The chat process: its start, its two pipes, and its end."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

import msgspec
import psutil

from slidepack.daemon.supervisor.worker_process import (
    WorkerProcess,
    current_boot_id,
    find_worker,
    worker_environment,
)
from slidepack.engine.chat.contract import AnyCommand, ChatRequest, encode_command
from slidepack.engine.chat.events import AnyEvent, decode_event
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import Frozen
from slidepack.engine.contract.runfolder import read_struct, write_atomic, write_structs

__all__ = ["ChatProcess", "end_orphans", "start_chat"]

logger = logging.getLogger(__name__)

_LOG_BYTES: Final = 4096
_IDENTITY: Final = "process.json"


class _Identity(Frozen, frozen=True, kw_only=True):
    """By what a later daemon finds the process."""

    nonce: str
    pid: int | None = None
    started: int | None = None
    boot_id: str = ""


class ChatProcess:
    """A running process that is told commands and tells events."""

    def __init__(self, child: subprocess.Popen[bytes], folder: Path) -> None:
        """Wrap a process that has just been started; nothing is read before `listen`."""
        assert child.stdin is not None
        assert child.stdout is not None
        self.folder = folder
        self.worker = WorkerProcess(psutil.Process(child.pid), child)
        self._child = child
        self._input: IO[bytes] = child.stdin
        self._output: IO[bytes] = child.stdout
        self._input_lock = threading.Lock()
        self._reader: threading.Thread | None = None

    def listen(
        self, on_event: Callable[[AnyEvent], None], on_end: Callable[[int, str], None]
    ) -> None:
        """Begin to read, in a thread of its own.

        Args:
            on_event: told of each event.
            on_end: told the exit code, negative for a signal, and the last line of the log.
        """
        self._reader = threading.Thread(
            target=self._read, args=(on_event, on_end), name="chat", daemon=True
        )
        self._reader.start()

    def send(self, command: AnyCommand) -> None:
        """Write a command; to a process that has ended nothing is written, and its end is told."""
        try:
            with self._input_lock:
                self._input.write(encode_command(command))
                self._input.flush()
        except (OSError, ValueError):
            return

    def close(self) -> None:
        """End the commands: the process ends by itself.

        A command that is being written is not waited for; it fails when the process ends.
        """
        if not self._input_lock.acquire(blocking=False):
            return
        try:
            self._input.close()
        except OSError:
            return
        finally:
            self._input_lock.release()

    def wait(self, seconds: float) -> None:
        """Wait until it has ended and all was read; kill it where it takes longer."""
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.worker.kill()
            self._child.wait()
        if self._reader is not None:
            self._reader.join(seconds)

    def _read(
        self, on_event: Callable[[AnyEvent], None], on_end: Callable[[int, str], None]
    ) -> None:
        with self._output:
            for line in self._output:
                try:
                    event = decode_event(line)
                except msgspec.DecodeError as error:
                    logger.error("The chat process told what is no event: %s", error)
                    self.worker.kill()
                    break
                on_event(event)
        code = self._child.wait()
        self.close()
        on_end(code, self._last_line())

    def _last_line(self) -> str:
        try:
            with (self.folder / "chat.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
                lines = file.read().decode("utf-8", "replace").split("\n")
        except OSError as error:
            return f"its log cannot be read: {error.strerror}"
        return next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty")


def start_chat(folder: Path, request: ChatRequest, nonce: str) -> ChatProcess:
    """Start a process in a session of its own.

    Args:
        folder: for its request and its log; made here.
        request: what it begins with.
        nonce: by which it is known.

    Raises:
        OSError: it could not be started.
    """
    folder.mkdir(parents=True)
    write_structs({folder / "request.json": request, folder / _IDENTITY: _Identity(nonce=nonce)})
    with (folder / "chat.log").open("ab") as log:
        child = subprocess.Popen(
            [
                sys.executable,
                *("-P", "-m", "slidepack.engine.chat"),
                str(folder / "request.json"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=worker_environment(nonce),
            start_new_session=True,
            cwd=folder,
        )
    process = ChatProcess(child, folder)
    identity = _Identity(
        nonce=nonce,
        pid=process.worker.pid,
        started=process.worker.started_ticks,
        boot_id=current_boot_id(),
    )
    write_atomic(folder / _IDENTITY, msgspec.json.encode(identity))
    return process


def end_orphans(root: Path) -> None:
    """End the processes of an earlier daemon; by themselves they end as soon as they notice.

    Args:
        root: folder of the folders of all chats.
    """
    for path in sorted(root.glob(f"*/{_IDENTITY}")):
        try:
            known = read_struct(path, _Identity)
        except SlidepackError as error:
            logger.warning("A chat of an earlier daemon is not looked for: %s", error)
            continue
        found = find_worker(
            known.nonce, pid=known.pid, started_ticks=known.started, boot_id=known.boot_id
        )
        if found is not None:
            found.kill()
