"""The list of programs to choose from, of real processes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.waiting import wait_until

from slidepack.daemon.policy.applications import Applications
from slidepack.daemon.policy.programs import Program, running_programs
from slidepack.daemon.policy.rules import Policy

_INIT = 1


@contextmanager
def _running(*command: str) -> Iterator[int]:
    """Start a program that is no child of this process, as a user's are not the daemon's."""
    script = f"{' '.join(command)} >/dev/null 2>&1 & echo $!"
    started = subprocess.run(
        ["setsid", "sh", "-c", script], capture_output=True, text=True, check=True
    )
    pid = int(started.stdout)
    try:
        yield pid
    finally:
        os.kill(pid, 9)


def _programs(**changes: object) -> dict[str, Program]:
    fields = {"our_pids": (), "gpu_pids": ()} | changes
    policy = fields.pop("policy", Policy())
    found = running_programs(policy, **fields)  # type: ignore[arg-type]
    return {program.name: program for program in found}


@pytest.fixture
def game(tmp_path: Path) -> Path:
    """A program of its own name."""
    path = tmp_path / "my[game]"
    shutil.copy("/bin/sleep", path)
    return path


def test_a_program_is_found_once_and_its_pattern_names_it(game: Path) -> None:
    with _running(f"'{game}'", "60") as first, _running(f"'{game}'", "60"):
        wait_until(lambda: game.name in _programs())
        found = _programs()[game.name]
        assert (found.gpu, found.listed) == (False, False)
        policy = Policy(exclusive_apps=(found.pattern,))
        assert _programs(policy=policy)[game.name].listed
        seen = Applications(own_pid=os.getpid()).find(policy, (), 0.0)
        assert {app.name for app in seen} == {game.name}
        assert _programs(gpu_pids={first})[game.name].gpu
        assert next(iter(_programs(gpu_pids={first}))) == game.name, "who uses a card comes first"


def test_a_script_goes_by_its_own_name_and_not_by_its_interpreters(tmp_path: Path) -> None:
    script = tmp_path / "render_farm.py"
    script.write_text("import time; time.sleep(60)")
    with _running(sys.executable, str(script)):
        wait_until(lambda: script.name in _programs())
        pattern = _programs()[script.name].pattern
        assert pattern == "cmd:*render_farm.py*"
        assert _programs(policy=Policy(exclusive_apps=(pattern,)))[script.name].listed


def test_workers_and_what_they_started_are_no_choice(game: Path) -> None:
    with _running(f"'{game}'", "60") as pid:
        wait_until(lambda: game.name in _programs())
        assert game.name not in _programs(our_pids=(pid,))


def test_what_a_desktop_runs_all_day_comes_last(game: Path) -> None:
    policy = Policy(ignored_processes=("my?game?",))
    with _running(f"'{game}'", "60") as pid:
        wait_until(lambda: game.name in _programs())
        found = _programs(policy=policy, gpu_pids={pid})
        assert found[game.name].desktop
        assert list(found)[-1] == game.name
