"""Windows programs under WSL, through a command that the test puts in tasklist's place."""

import stat
from pathlib import Path

import pytest

from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.policy.windows_side import WindowsSide

POLICY = Policy(exclusive_apps=("eldenring", "Code.exe"))
LISTED = (
    '"System Idle Process","0","Services","0","8 K"\r\n'
    '"EldenRing.exe","4711","Console","1","8,123,456 K"\r\n'
    '"EldenRing.exe","4712","Console","1","12 K"\r\n'
    '"vmmemWSL","77","Console","1","1,000 K"\r\n'
)


class _Tasklist:
    """A script that prints what is in a file and counts how often it ran."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "output"
        self._count = folder / "count"
        self._script = folder / "tasklist"
        self.answer(LISTED)
        self.behave(f"cat {self._output}")

    def behave(self, line: str) -> None:
        self._script.write_text(f"#!/bin/sh\necho x >> {self._count}\n{line}\n")
        self._script.chmod(self._script.stat().st_mode | stat.S_IXUSR)

    def answer(self, text: str) -> None:
        self._output.write_bytes(text.encode())

    @property
    def command(self) -> tuple[str, ...]:
        return (str(self._script), "/fo", "csv", "/nh")

    @property
    def runs(self) -> int:
        return len(self._count.read_text().split()) if self._count.exists() else 0


@pytest.fixture
def tasklist(tmp_path: Path) -> _Tasklist:
    return _Tasklist(tmp_path)


def test_a_windows_program_is_found_with_and_without_its_ending(tasklist: _Tasklist) -> None:
    side = WindowsSide(tasklist.command)
    (found,) = side.find(POLICY, 0.0)
    assert found.text("runs") == "EldenRing.exe runs (an exclusive application, in Windows)"
    assert side.problem == ""
    exact = Policy(exclusive_apps=("eldenring.exe",))
    assert len(WindowsSide(tasklist.command).find(exact, 0.0)) == 1


def test_it_asks_at_most_every_five_seconds_and_not_for_nothing(tasklist: _Tasklist) -> None:
    side = WindowsSide(tasklist.command)
    assert side.find(Policy(), 0.0) == ()
    assert tasklist.runs == 0
    for second in range(10):
        side.find(POLICY, float(second))
    assert tasklist.runs == 2
    tasklist.answer(LISTED.replace("EldenRing", "notepad"))
    assert len(side.find(POLICY, 9.5)) == 1
    assert side.find(POLICY, 10.0) == ()


@pytest.mark.parametrize(
    ("line", "said"),
    [("exit 3", "exit status 3"), ("true", "listed none"), ("echo INFO: none", "listed none")],
)
def test_an_answer_that_does_not_come_leaves_none_and_is_told(
    tasklist: _Tasklist, line: str, said: str
) -> None:
    side = WindowsSide(tasklist.command)
    assert side.find(POLICY, 0.0)
    tasklist.behave(line)
    assert side.find(POLICY, 5.0) == ()
    assert said in side.problem
    tasklist.behave(f"printf '{LISTED.splitlines()[1]}'")
    assert side.find(POLICY, 10.0)
    assert side.problem == ""


def test_a_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    side = WindowsSide((str(tmp_path / "none"),))
    assert side.find(POLICY, 0.0) == ()
    assert "No such file" in side.problem


def test_a_command_that_hangs_is_given_up(tasklist: _Tasklist) -> None:
    tasklist.behave("exec sleep 60")
    side = WindowsSide(tasklist.command, timeout_seconds=0.2)
    assert side.find(POLICY, 0.0) == ()
    assert "timed out" in side.problem
