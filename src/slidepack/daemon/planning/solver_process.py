"""The solver's process: it is asked, watched and, where its answer is not wanted, killed."""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from slidepack.daemon.planner.answer import Plan
from slidepack.daemon.planner.request import PlanRequest
from slidepack.engine.contract.errors import ErrorReport, SlidepackError

__all__ = ["COMMAND", "Solving", "solve_in_process"]

COMMAND: Final = (sys.executable, "-P", "-m", "slidepack.daemon.planner.solve")
_SLACK_SECONDS: Final = 10.0
"""Beyond the time that it is given, for its start and its last simulation."""


class _Refusal(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorReport


class Solving:
    """One request that is being solved."""

    def __init__(self, request: PlanRequest, command: Sequence[str] = COMMAND) -> None:
        """Start the process.

        Args:
            request: what is to be planned.
            command: that answers it.

        Raises:
            OSError: it could not be started.
        """
        # Files, because a pipe that nobody reads would stop the process before its end.
        with contextlib.ExitStack() as files:
            self._answer = files.enter_context(tempfile.TemporaryFile())
            with tempfile.TemporaryFile() as question:
                question.write(msgspec.json.encode(request))
                question.seek(0)
                self._process = subprocess.Popen(
                    command, stdin=question, stdout=self._answer, start_new_session=True
                )
            self._files = files.pop_all()
        self._until = time.monotonic() + request.seconds + _SLACK_SECONDS

    def ended(self) -> bool:
        """Return whether there is an answer, or never will be one."""
        return self._process.poll() is not None or time.monotonic() > self._until

    def wait(self) -> None:
        """Wait until `ended`."""
        try:
            self._process.wait(max(0.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            # `answer` tells of it.
            return

    def answer(self) -> Plan:
        """Return the plan, once `ended`; the process is gone afterwards.

        Raises:
            SlidepackError: RUN-CRASHED where there is none, or what the process refused with.
        """
        try:
            code = self._process.poll()
            self._answer.seek(0)
            text = self._answer.read()
        finally:
            self.kill()
        try:
            if code == 0:
                return msgspec.json.decode(text, type=Plan)
            raise SlidepackError.from_report(msgspec.json.decode(text, type=_Refusal).error)
        except msgspec.DecodeError as error:
            ended = "was too slow" if code is None else f"ended with code {code}"
            raise SlidepackError(
                "RUN-CRASHED",
                "The planner's process gave no plan.",
                why=f"it {ended}: {error}",
                fix="Ask again; the queue goes on without it.",
            ) from error

    def kill(self) -> None:
        """End the process, where it still runs, and forget its answer."""
        self._process.kill()
        self._process.wait()
        self._files.close()


def solve_in_process(request: PlanRequest, command: Sequence[str] = COMMAND) -> Plan:
    """Plan with the solver; takes as long as the request allows.

    Raises:
        SlidepackError: RUN-CRASHED where there is no plan, or what the process refused with.
    """
    try:
        solving = Solving(request, command)
    except OSError as error:
        raise SlidepackError(
            "RUN-CRASHED",
            "The planner's process could not be started.",
            why=str(error),
            fix="Ask again when the machine has memory for it.",
        ) from error
    try:
        solving.wait()
    except BaseException:
        solving.kill()
        raise
    return solving.answer()
