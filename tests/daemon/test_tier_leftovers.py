"""What a killed worker leaves on drives goes when its job waits, or has ended."""

import os
import signal
from pathlib import Path

import msgspec
import pytest
from support.full_worker import events_of, start
from support.job_folders import Shop
from support.runs import tiny_spec
from support.tier_runs import make_tier_run
from support.waiting import wait_until

from slidepack.daemon.removals import disk_bytes
from slidepack.daemon.states import JobState
from slidepack.daemon.supervisor.tier_leftovers import remove_tier_folders, tier_folders_of
from slidepack.engine.contract.events import Started
from slidepack.engine.contract.job import FullMethod
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.tier_folders import OURS, take_folder, tier_folder


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "home")


def _killed(shop: Shop, base: Path, drive: Path) -> int:
    """Return a running job whose worker was killed in the middle of its steps."""
    job_id = shop.job([[]])
    folder = shop.paths.attempt(job_id, 1)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir()
    folder.rmdir()
    spec = tiny_spec(base, method=FullMethod(), steps=500, checkpoint_every_steps=2)
    run = make_tier_run(folder, spec, drive)
    worker = start(run, halt_at=5)
    wait_until(lambda: bool(run.list_checkpoints()) or worker.poll() is not None)
    assert worker.poll() is None, run.log.read_text()
    assert not remove_tier_folders(folder.parent), "its worker lives"
    worker.send(signal.SIGKILL)
    worker.wait()
    assert any(isinstance(event, Started) for event in events_of(run))
    return job_id


@pytest.mark.full
@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_they_go_with_the_end_and_checkpoints_stay(
    shop: Shop, tmp_path: Path, state: JobState
) -> None:
    drive = tmp_path / "drive"
    job_id = _killed(shop, tmp_path, drive)
    job = shop.paths.jobs / str(job_id)
    (left,) = (drive / OURS).iterdir()
    assert tier_folders_of(job) == [left]
    both = disk_bytes(job, left)
    assert both > disk_bytes(job), "deleting the job frees them too"
    (other := drive / "run-0123456789abcdef").mkdir()
    shop.retention.after_checkpoint(job_id)
    shop.retention.work()
    assert left.exists(), "nobody has seen yet that its worker is gone"
    shop.set(job_id, state)
    shop.retention.after_end(job_id)
    shop.retention.work()
    assert list(drive.iterdir()) == [other]
    newest = RunFolder(shop.paths.attempt(job_id, 1)).list_checkpoints()[0]
    assert {file.stat().st_nlink for file in newest.glob("*.state-*")} == {1}


@pytest.mark.full
@pytest.mark.parametrize("state", ["queued", "paused"])
def test_a_job_that_waits_keeps_no_room_there(shop: Shop, tmp_path: Path, state: JobState) -> None:
    drive = tmp_path / "drive"
    job_id = _killed(shop, tmp_path, drive)
    shop.stores.attempts.end(shop.stores.attempt(job_id), "interrupted", -9, 2.0)
    shop.set(job_id, state)
    shop.retention.work()
    assert not list(drive.iterdir())
    newest = RunFolder(shop.paths.attempt(job_id, 1)).list_checkpoints()[0]
    assert {file.stat().st_nlink for file in newest.glob("*.state-*")} == {1}
    # Its next worker is killed as well.
    shop.stores.attempts.add(job_id, 2, str(shop.paths.attempt(job_id, 2)), "other", 3.0)
    os.close(take_folder(left := tier_folder(drive, shop.paths.jobs / str(job_id))))
    shop.set(job_id, "running")
    shop.retention.work()
    assert left.exists()
    shop.stores.attempts.end(shop.stores.attempt(job_id, 2), "interrupted", -9, 4.0)
    shop.set(job_id, state)
    shop.retention.work()
    assert not left.exists()


def test_they_go_with_a_job_that_is_deleted_at_once(shop: Shop, tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    job_id = _killed(shop, tmp_path, drive)
    shop.set(job_id, "failed")
    shop.retention.remove_job_folder(job_id)
    shop.stores.jobs.remove(job_id)
    shop.retention.work()
    assert not list(drive.iterdir())
    assert not (shop.paths.jobs / str(job_id)).exists()


def test_a_worker_that_lives_keeps_its_folder(shop: Shop, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(tiny_spec(tmp_path), method=FullMethod())
    run = make_tier_run(tmp_path / "job" / "1", spec, tmp_path / "drive")
    mine = tier_folder(tmp_path / "drive", run.root.parent)
    with open(take_folder(mine), "wb"):
        assert not remove_tier_folders(run.root.parent)
        assert mine.exists()
    assert remove_tier_folders(run.root.parent)
    assert not mine.exists()
