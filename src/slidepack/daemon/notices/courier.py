"""Runs delivering processes and reads their answers; never waits for one unless asked to."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import BinaryIO, Final

import msgspec

from slidepack.daemon.notices.contract import Answer, Message, Request
from slidepack.daemon.notices.masking import scrub

DELIVERY_SECONDS: Final = 30.0
_LEEWAY_SECONDS: Final = 10.0
"""Beyond the time that a delivery has: the process ends itself, if it still can."""
_POLL_SECONDS: Final = 0.02
_FOREIGN_SECRETS: Final = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"})
_COMMAND: Final = (sys.executable, "-P", "-m", "slidepack.daemon.notices.deliver")


class Delivery:
    """One delivering process.

    Request and answers are in anonymous memory: no other user's eyes, no disk, and no pipe that
    either side could block on.
    """

    def __init__(self, command: Sequence[str], request: Request) -> None:
        """Start the process.

        Raises:
            OSError: it could not be started.
        """
        self._request = request
        self._kill_at = time.monotonic() + request.seconds + _LEEWAY_SECONDS
        self._killed = False
        with _memory() as asked:
            asked.write(msgspec.json.encode(request))
            asked.seek(0)
            with contextlib.ExitStack() as stack:
                self._out = stack.enter_context(_memory())
                self._err = stack.enter_context(_memory())
                self._child = subprocess.Popen(
                    command,
                    stdin=asked,
                    stdout=self._out,
                    stderr=self._err,
                    env={k: v for k, v in os.environ.items() if k not in _FOREIGN_SECRETS}
                    | {"PYTHONUTF8": "1"},
                    start_new_session=True,
                )
                stack.pop_all()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def is_running(self) -> bool:
        """Return whether it still works; past its time it is killed."""
        if self._child.poll() is not None:
            return False
        if time.monotonic() < self._kill_at:
            return True
        self.kill()
        return False

    def kill(self) -> None:
        """End it at once."""
        if self._child.poll() is None:
            self._killed = True
            # It leads a process group of its own, and was not waited for: the id is still its.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, but not for longer than `seconds`; return whether it has ended."""
        deadline = time.monotonic() + seconds
        while self.is_running():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def answers(self) -> dict[int, Answer]:
        """Return one answer for every message, by its key, and free the memory. Once, at the end.

        Whoever was not answered for has failed, with what is known of the process.
        """
        with self._out, self._err:
            found = {answer.key: answer for answer in _answers(_contents(self._out))}
            complaint = _contents(self._err).decode("utf-8", "replace").strip()
        for message in self._request.messages:
            if message.key not in found:
                found[message.key] = Answer(
                    key=message.key, ok=False, error=self._why(message, complaint)
                )
        return found

    def _why(self, message: Message, complaint: str) -> str:
        if self._killed:
            return f"The sending process hung and was killed after {self._request.seconds:g} s."
        last = scrub(complaint.splitlines()[-1], message.url)[:200] if complaint else ""
        told = f": {last}" if last else ""
        return f"The sending process ended with exit code {self._child.returncode}{told}"


class Courier:
    """Starts deliveries."""

    def __init__(
        self, command: Sequence[str] = _COMMAND, seconds: float = DELIVERY_SECONDS
    ) -> None:
        """Choose the program and the time that a delivery has."""
        self._command = command
        self._seconds = seconds

    def start(self, messages: Sequence[Message], *, check_only: bool = False) -> Delivery:
        """Start a process for messages.

        Raises:
            OSError: it could not be started.
        """
        return Delivery(
            self._command,
            Request(seconds=self._seconds, messages=tuple(messages), check_only=check_only),
        )

    def run(self, message: Message, *, check_only: bool = False) -> Answer:
        """Deliver one message, or look at its address, and wait for the answer."""
        try:
            delivery = self.start([message], check_only=check_only)
        except OSError as error:
            return Answer(key=message.key, ok=False, error=cannot_start(error))
        delivery.wait(self._seconds + 2 * _LEEWAY_SECONDS)
        return delivery.answers()[message.key]


def cannot_start(error: OSError) -> str:
    """Return why no process could be started."""
    return f"The sending process could not be started: {error.strerror}."


def _memory() -> BinaryIO:
    return os.fdopen(os.memfd_create("slidepack-notice", os.MFD_CLOEXEC), "r+b")


def _contents(file: BinaryIO) -> bytes:
    # The child moved the shared position; what it wrote begins at 0.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def _answers(data: bytes) -> list[Answer]:
    found = []
    for line in data.splitlines():
        # A process that was killed may leave half a line; it then counts as unanswered.
        with contextlib.suppress(msgspec.DecodeError):
            found.append(msgspec.json.decode(line, type=Answer))
    return found
