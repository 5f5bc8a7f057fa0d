"""Programs found among processes: real ones, and a /proc that the test writes."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from slidepack.daemon.policy.applications import Application, Applications
from slidepack.daemon.policy.rules import Policy

LISTED = Policy(exclusive_apps=("some-game*",), detect_games=False)
STRANGER = 1 << 30
"""No process's pid: what a test starts would else count as the daemon's own."""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process group under a name; all of them are killed afterwards."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*command: str, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(list(command), start_new_session=True, cwd=tmp_path, **options)
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _game(folder: Path, name: str) -> str:
    path = folder / name
    shutil.copy("/bin/sleep", path)
    return str(path)


def _names(found: tuple[Application, ...]) -> list[str]:
    return [application.name for application in found]


@pytest.mark.parametrize("name", ["some-game", "some-game-with-a-very-long-name"])
def test_a_listed_program_is_found_while_it_runs(start: Start, tmp_path: Path, name: str) -> None:
    applications = Applications(own_pid=STRANGER)
    assert applications.find(LISTED, (), 0.0) == ()
    process = start(_game(tmp_path, name), "60")
    wait_until(lambda: _names(applications.find(LISTED, (), 1.0)) == [name])
    (found,) = applications.find(LISTED, (), 2.0)
    assert (found.pid, found.kind) == (process.pid, "listed")
    assert found.text("runs") == f"{name} runs (an exclusive application)"
    os.kill(process.pid, signal.SIGKILL)
    # Nobody has waited for it yet: it is still in the table, and no longer runs.
    wait_until(lambda: applications.find(LISTED, (), 3.0) == ())
    process.wait()
    assert applications.find(LISTED, (), 4.0) == ()


def test_case_path_and_command_line_are_patterns_too(start: Start, tmp_path: Path) -> None:
    process = start(_game(tmp_path, "Other-Game"), "61.25")
    for pattern in ("other-*", f"{tmp_path}/*", "cmd:*game 61.25"):
        applications = Applications(own_pid=STRANGER)
        policy = Policy(exclusive_apps=(pattern,))
        found = wait_until(lambda a=applications, p=policy: a.find(p, (), 0.0))  # type: ignore[misc]  # bound now
        assert [application.pid for application in found] == [process.pid], pattern


def test_another_policy_counts_from_the_next_look(start: Start, tmp_path: Path) -> None:
    start(_game(tmp_path, "some-game"), "60")
    applications = Applications(own_pid=STRANGER)
    wait_until(lambda: applications.find(LISTED, (), 0.0))
    other = Policy(exclusive_apps=("other-game",), detect_games=False)
    assert applications.find(other, (), 100.0) == ()
    assert _names(applications.find(LISTED, (), 101.0)) == ["some-game"]


def test_our_workers_and_what_they_start_never_count(start: Start, tmp_path: Path) -> None:
    game = _game(tmp_path, "some-game")
    worker = start("/bin/sh", "-c", f"{game} 60 & {game} 60 & wait")
    applications = Applications(own_pid=STRANGER)
    found = wait_until(lambda: f if len(f := applications.find(LISTED, (), 0.0)) == 2 else None)
    assert found is not None
    assert applications.find(LISTED, (worker.pid,), 1.0) == ()
    assert all(applications.is_ours(game.pid, (worker.pid,)) for game in found)
    # A worker that has died leaves children, which init adopts.
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert applications.find(LISTED, (worker.pid,), 2.0) == ()
    os.killpg(worker.pid, signal.SIGKILL)


def test_what_the_daemon_itself_starts_never_counts(start: Start, tmp_path: Path) -> None:
    start(_game(tmp_path, "some-game"), "60")
    stranger = Applications(own_pid=STRANGER)
    wait_until(lambda: stranger.find(LISTED, (), 0.0))
    assert Applications().find(LISTED, (), 0.0) == ()


def test_a_steam_game_is_found_under_its_own_name(start: Start, tmp_path: Path) -> None:
    game = _game(tmp_path, "cs2")
    # Bash runs the script SteamLaunch, and so looks just like Steam's reaper from outside.
    script = 'sh -c \'"$0" 60 & wait\' "$4" & wait'
    (tmp_path / "SteamLaunch").write_text(script)
    reaper = start(
        *("reaper", "SteamLaunch", "AppId=730", "--", "steam-launch-wrapper", game),
        executable="/bin/bash",
    )
    applications = Applications(own_pid=STRANGER)
    policy = Policy()
    wait_until(lambda: "cs2" in _names(applications.find(policy, (), 0.0)))
    (found,) = applications.find(policy, (), 1.0)
    assert (found.pid, found.kind, found.app_id) == (reaper.pid, "steam", "730")
    assert found.text("runs") == "cs2 runs (Steam game 730)"
    assert applications.find(Policy(detect_games=False), (), 2.0) == ()
    os.killpg(reaper.pid, signal.SIGKILL)
    reaper.wait()
    assert applications.find(policy, (), 3.0) == ()


def test_gamemodes_library_marks_a_game(start: Start, tmp_path: Path) -> None:
    preload = "/usr/lib/$LIB/libgamemodeauto.so.0"
    start(
        _game(tmp_path, "tux-racer"),
        "60",
        env={"PATH": "/bin", "LD_PRELOAD": preload},
        stderr=subprocess.DEVNULL,
    )
    applications = Applications(own_pid=STRANGER)
    policy = Policy()
    found = wait_until(
        lambda: f if "tux-racer" in _names(f := applications.find(policy, (), 0.0)) else None
    )
    assert found is not None
    assert found[0].text("runs") == "tux-racer runs (in GameMode)"


class _Proc:
    """A process file system that the test writes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(
        self,
        pid: int,
        command: tuple[str, ...],
        *,
        parent: int = 1,
        comm: str = "",
        started: int = 100,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        folder = self.root / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        name = comm or os.path.basename(command[0].replace("\\", "/"))[:15]
        numbers = " ".join(["0"] * 15)
        stat = f"{pid} ({name}) S {parent} {pid} {pid} {numbers} {started} 0 0"
        (folder / "stat").write_text(stat)
        (folder / "cmdline").write_text("".join(f"{part}\0" for part in command))
        variables = (environ or {}).items()
        (folder / "environ").write_text("".join(f"{k}={v}\0" for k, v in variables))

    def exec(self, pid: int, path: str) -> None:
        """Let a process become another program; its folder stays the same."""
        stat = self.root / str(pid) / "stat"
        head, _, tail = stat.read_text().partition("(")
        stat.write_text(f"{head}({os.path.basename(path)[:15]}){tail.partition(')')[2]}")
        (self.root / str(pid) / "cmdline").write_text(f"{path}\0")


@pytest.fixture
def proc(tmp_path: Path) -> _Proc:
    return _Proc(tmp_path / "proc")


def test_a_proton_game_is_called_by_its_windows_name(proc: _Proc) -> None:
    steam = "/home/ada/.steam/ubuntu12_32/reaper"
    exe = "/games/ELDEN RING/Game/eldenring.exe"
    launch = (steam, "SteamLaunch", "AppId=1245620", "--", "/x/wrapper", "--", "/x/proton", "run")
    proc.write(10, (*launch, exe))
    applications = Applications(proc.root, own_pid=1)
    assert _names(applications.find(Policy(), (), 0.0)) == ["eldenring.exe"]
    proc.write(11, ("/x/srt-bwrap", "--args"), parent=10)
    proc.write(12, ("C:\\windows\\system32\\services.exe",), parent=11)
    proc.write(13, ("Z:\\games\\start_protected_game.exe",), parent=11, comm="start_protected")
    (found,) = applications.find(Policy(), (), 1.0)
    assert found.text("ran") == "start_protected_game.exe ran (Steam game 1245620)"
    listed = Policy(exclusive_apps=("start_protected_game.exe",))
    kinds = [found.kind for found in applications.find(listed, (), 2.0)]
    assert kinds == ["steam", "listed"], "the one that says most comes first"


def test_other_reapers_are_no_games(proc: _Proc) -> None:
    proc.write(10, ("/usr/bin/reaper", "project.rpp"))
    proc.write(11, ("/usr/bin/reaper", "SteamLaunch", "--", "AppId=1"))
    proc.write(12, ("bash", "SteamLaunch", "AppId=1", "--", "x"))
    assert Applications(proc.root, own_pid=1).find(Policy(), (), 0.0) == ()


def test_a_child_of_gamemoderun_is_a_game(proc: _Proc) -> None:
    proc.write(20, ("/bin/sh", "/usr/bin/gamemoderun", "xonotic"), comm="gamemoderun")
    proc.write(21, ("/opt/xonotic",), parent=20)
    found = Applications(proc.root, own_pid=1).find(Policy(), (), 0.0)
    assert _names(found) == ["xonotic", "xonotic"]


def test_a_process_is_read_again_while_it_goes_from_fork_to_exec(proc: _Proc) -> None:
    proc.write(30, ("/bin/bash",))
    applications = Applications(proc.root, own_pid=1)
    assert applications.find(LISTED, (), 0.0) == ()
    proc.exec(30, "/games/some-game")
    assert _names(applications.find(LISTED, (), 5.0)) == ["some-game"]


def test_one_that_execs_late_is_found_in_its_turn(proc: _Proc) -> None:
    for pid in range(30, 60):
        proc.write(pid, (f"/bin/tool{pid}",))
    applications = Applications(proc.root, own_pid=1)
    for second in range(12):
        assert applications.find(LISTED, (), float(second)) == ()
    proc.exec(45, "/games/some-game")
    found = [applications.find(LISTED, (), 12.0 + second) for second in range(12)]
    assert _names(found[-1]) == ["some-game"]


def test_a_recycled_pid_is_another_process(proc: _Proc) -> None:
    proc.write(30, ("/games/some-game",), started=100)
    applications = Applications(proc.root, own_pid=1)
    for second in range(12):
        assert len(applications.find(LISTED, (), float(second))) == 1
    # Other files have other inodes, as another process's folder has.
    kept = proc.root / "30"
    kept.rename(proc.root / "kept")
    proc.write(30, ("/bin/backup",), started=9000)
    assert applications.find(LISTED, (), 20.0) == ()
    assert applications.started(30) == 9000


def test_the_kernels_own_threads_and_unreadable_folders_are_left_out(proc: _Proc) -> None:
    proc.write(2, ("some-game-a",), parent=0)
    proc.write(3, ("some-game-b",), parent=2)
    (proc.root / "4").mkdir()
    (proc.root / "4" / "stat").write_text("4 (some-game")
    (proc.root / "meminfo").write_text("")
    assert Applications(proc.root, own_pid=1).find(LISTED, (), 0.0) == ()


def test_a_scan_of_three_hundred_processes_is_cheap(start: Start, tmp_path: Path) -> None:
    many = " ".join(["/bin/sleep 60 &"] * 250)
    start("/bin/sh", "-c", f"{many} wait")
    wait_until(lambda: sum(name.isdecimal() for name in os.listdir("/proc")) > 250)
    applications = Applications(own_pid=STRANGER)
    policy = Policy(exclusive_apps=("some-game", "/opt/games/*", "cmd:*--game*"))
    for second in range(15):
        applications.find(policy, (), float(second))
    costs = []
    for second in range(100):
        before = time.process_time()
        applications.find(policy, (), 15.0 + second)
        costs.append(time.process_time() - before)
    # The median: other tests start and end processes meanwhile.
    assert sorted(costs)[50] < 0.002, "twice what it may take on a desktop's processor"
