"""Folders on drives: ours alone are ever removed, and those of the living never."""

import multiprocessing
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.tier_takers import remove_all_the_time, take_and_leave

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.failures import folder_error
from slidepack.engine.tier_folders import (
    OURS,
    bench_folder,
    discard,
    leave_folder,
    remove_dead,
    remove_if_dead,
    take_folder,
    tier_folder,
)

_HOLDER = """
import sys
from pathlib import Path
from slidepack.engine.tier_folders import take_folder
folder = Path(sys.argv[1])
take_folder(folder)
(folder / "00000-000001.state").write_bytes(b"state")
print("taken", flush=True)
sys.stdin.read()
"""


@contextmanager
def _holder(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a process that has a folder, with a file in it, until it is killed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _left_by_a_killed_process(folder: Path) -> Path:
    with _holder(folder) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (folder / "00000-000001.state").exists()
    return folder


def _tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_what_users_have_beside_and_inside_it_stays(tmp_path: Path) -> None:
    drive, elsewhere = tmp_path / "drive", tmp_path / "elsewhere"
    ours = drive / OURS
    for folder in (
        drive / "run-20260101_120000-abc123",
        drive / "run-0123456789abcdef",
        ours / "run-20260101_120000-abc123",
        ours / "run-0123456789ABCDEF",
        ours / "run-0123456789abcdef0",
        ours / "run-0123456789abcdef",
        elsewhere / "run-aaaaaaaaaaaaaaaa",
    ):
        folder.mkdir(parents=True)
        (folder / "results.csv").write_text("mine")
    # What looks like ours, with a lock, at the other end of a link.
    (elsewhere / "run-aaaaaaaaaaaaaaaa" / "slidepack.lock").touch()
    (ours / "run-aaaaaaaaaaaaaaaa").symlink_to(elsewhere / "run-aaaaaaaaaaaaaaaa")
    linked = ours / "run-bbbbbbbbbbbbbbbb"
    linked.mkdir()
    (linked / "slidepack.lock").symlink_to(elsewhere / "run-aaaaaaaaaaaaaaaa" / "slidepack.lock")
    before = _tree(tmp_path)
    remove_dead(drive)
    for path in (*drive.iterdir(), *ours.iterdir()):
        remove_if_dead(path)
    mine = tier_folder(drive, tmp_path / "job")
    leave_folder(mine, take_folder(mine))
    assert _tree(tmp_path) == before


def test_a_link_in_place_of_our_folder_leads_nowhere(tmp_path: Path) -> None:
    drive, elsewhere = tmp_path / "drive", tmp_path / "elsewhere"
    drive.mkdir()
    (elsewhere / "run-aaaaaaaaaaaaaaaa").mkdir(parents=True)
    (elsewhere / "run-aaaaaaaaaaaaaaaa" / "slidepack.lock").touch()
    (drive / OURS).symlink_to(elsewhere)
    before = _tree(tmp_path)
    remove_dead(drive)
    with pytest.raises(NotADirectoryError):
        take_folder(tier_folder(drive, tmp_path / "job"))
    assert _tree(tmp_path) == before


@pytest.mark.parametrize("kind", ["run", "bench"])
def test_what_the_dead_left_goes_and_the_living_keep_theirs(tmp_path: Path, kind: str) -> None:
    name = {"run": lambda number: tier_folder(tmp_path, tmp_path / str(number))}
    folder_of = name.get(kind, lambda _number: bench_folder(tmp_path))
    dead = _left_by_a_killed_process(folder_of(1))
    # Killed before it had made its lock.
    (early := folder_of(2)).mkdir()
    with _holder(folder_of(3)) as process:
        remove_dead(tmp_path)
        (living,) = (tmp_path / OURS).iterdir()
        assert not remove_if_dead(living)
        assert (living / "00000-000001.state").read_bytes() == b"state"
        assert not dead.exists()
        assert not early.exists()
        process.kill()
        process.wait()
        assert remove_if_dead(living)
    assert not list(tmp_path.iterdir()), "not even our own folder"


def test_what_is_in_the_way_of_removing_is_kept_with_its_lock(tmp_path: Path) -> None:
    dead = _left_by_a_killed_process(tier_folder(tmp_path, tmp_path / "job"))
    (dead / "somebody's").mkdir()
    remove_dead(tmp_path)
    assert sorted(path.name for path in dead.iterdir()) == ["slidepack.lock", "somebody's"]
    (dead / "somebody's").rmdir()
    remove_dead(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_store_that_goes_first_takes_the_folder_with_it(tmp_path: Path) -> None:
    folder = tier_folder(tmp_path, tmp_path / "job")
    lock = take_folder(folder)
    (folder / "left").touch()
    discard(folder)
    assert folder.exists()
    (folder / "left").unlink()
    discard(folder)
    discard(folder)
    assert not list(tmp_path.iterdir())
    # Somebody else has it now; the lock of before is no leave to remove anything.
    other = take_folder(folder)
    (folder / "theirs").touch()
    leave_folder(folder, lock)
    assert (folder / "theirs").exists()
    leave_folder(folder, other)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_holds_is_busy_and_one_that_is_away_is_named(tmp_path: Path) -> None:
    folder = tier_folder(tmp_path, tmp_path / "job")
    with _holder(folder), pytest.raises(BlockingIOError) as busy:
        take_folder(folder)
    error = folder_error(busy.value, tmp_path, folder)
    assert isinstance(error, SlidepackError)
    assert error.report.code == "RUN-FOLDER-BUSY"
    away = tmp_path / "mnt" / "fast"
    with pytest.raises(FileNotFoundError) as missing:
        take_folder(tier_folder(away, tmp_path / "job"))
    report = folder_error(missing.value, away, folder).report
    assert report.code == "DISK-UNWRITABLE"
    assert str(away) in report.why
    assert "`nvme_folders`" in report.fix
    assert not (tmp_path / "mnt").exists()


def test_nobody_holds_a_lock_that_others_do_not_see(tmp_path: Path) -> None:
    folder = tier_folder(tmp_path, tmp_path / "job")
    context = multiprocessing.get_context("spawn")
    remover = context.Process(target=remove_all_the_time, args=(folder,), daemon=True)
    workers = [context.Process(target=take_and_leave, args=(folder, 100)) for _ in range(3)]
    for process in (remover, *workers):
        process.start()
    for worker in workers:
        worker.join()
    remover.kill()
    remover.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
