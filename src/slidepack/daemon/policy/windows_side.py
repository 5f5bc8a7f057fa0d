"""Under WSL: the programs of the Windows around this Linux, through `tasklist.exe`."""

import csv
import subprocess
from collections.abc import Sequence
from typing import Final

from slidepack.daemon.policy.applications import Application
from slidepack.daemon.policy.patterns import ProgramPatterns
from slidepack.daemon.policy.rules import Policy

TASKLIST: Final = ("tasklist.exe", "/fo", "csv", "/nh")
_EVERY_SECONDS: Final = 5.0
_TIMEOUT_SECONDS: Final = 4.0


class WindowsSide:
    """Asks Windows for its programs, at most every five seconds."""

    def __init__(
        self, command: Sequence[str] = TASKLIST, *, timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        """Name the command that prints the programs as CSV, one a line, the name first.

        Args:
            command: what is run.
            timeout_seconds: after this it is killed.
        """
        self._timeout_seconds = timeout_seconds
        self._command = tuple(command)
        self._asked_at = float("-inf")
        self._names: tuple[str, ...] = ()
        self.problem = ""
        """Why Windows gave no answer; empty where it did."""

    def find(self, policy: Policy, monotonic: float) -> tuple[Application, ...]:
        """Return the exclusive applications that run in Windows.

        An answer that does not come leaves none, and `problem` says why: training that never ran
        because of a slow command would be worse.

        Args:
            policy: its exclusive applications.
            monotonic: seconds by a clock that only goes forward.
        """
        if not policy.exclusive_apps:
            self.problem = ""
            return ()
        if monotonic - self._asked_at >= _EVERY_SECONDS:
            self._asked_at = monotonic
            self._ask()
        patterns = ProgramPatterns(policy.exclusive_apps)
        found = (name for name in self._names if patterns.match(_forms(name), (), name))
        return tuple(Application(pid=0, name=name, kind="windows") for name in found)

    def _ask(self) -> None:
        try:
            done = subprocess.run(
                self._command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_seconds,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._names = ()
            self.problem = f"the programs of Windows are not seen: {error}"
            return
        self._names = _image_names(done.stdout)
        self.problem = "" if self._names else "the programs of Windows are not seen: it listed none"


def _forms(name: str) -> tuple[str, ...]:
    """Return a name with and without its ending: people write either."""
    return (name, name[:-4]) if name.lower().endswith(".exe") else (name,)


def _image_names(output: bytes) -> tuple[str, ...]:
    # Windows writes in the code page of its console; names of programs are nearly always ASCII.
    rows = csv.reader(output.decode("utf-8", "replace").splitlines())
    return tuple(dict.fromkeys(row[0] for row in rows if len(row) >= 2 and row[0]))
