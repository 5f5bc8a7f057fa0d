"""A disk that is full or read-only: a coded error, nothing lost, and on it goes afterwards."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.daemons import DaemonProcess
from support.disks import SmallDisk, small_disk
from support.held import has_ended, held
from support.queueing import Farm, make_farm
from support.tiny import chat_rows, write_jsonl
from support.waiting import wait_until

_MB = 1 << 20
_STEPS = 160


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 64) as disk:
        yield disk


@pytest.fixture
def disk_daemon(disk: SmallDisk) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(disk.mount / "home")
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.clean_up()


def _checkpoints(farm: Farm, job_id: int) -> list[Path]:
    folder = Path(farm.daemon.attempts(job_id)[-1]["folder"])
    return sorted((folder / "checkpoints").glob("step-*"))


def _kept_after_a_full_disk(farm: Farm, disk: SmallDisk, leave: int) -> None:
    # A checkpoint of this rank takes 6 MB.
    job_id = farm.queue(rank=256, steps=_STEPS, checkpoint_every_steps=10)
    worker = farm.worker(job_id)
    wait_until(lambda: _checkpoints(farm, job_id), what="it has a checkpoint")
    # It would have written all others before the disk is full.
    with held(worker):
        disk.fill(leave)
    if not leave:
        wait_until(lambda: has_ended(worker))
        disk.free()
    kept = Path(farm.daemon.attempts(job_id)[0]["folder"]) / "checkpoints"
    if leave:
        job = farm.daemon.wait_for(job_id, "paused", "failed", "completed")
        assert job["state"] == "paused", job
        assert job["error"]["code"] == "DISK-FULL"
        assert list(kept.glob("step-*"))
        assert all((folder / "state.json").exists() for folder in kept.glob("step-*"))
        disk.free()
    # Nobody resumes it: there is room again, and that is enough.
    assert farm.finish(job_id)["error"] is None
    assert "there is room on the disk again" in [
        row["reason"] for row in farm.detail(job_id)["transitions"]
    ]
    assert "paused" in farm.states(job_id)
    series = farm.chart(job_id)["progress"]
    assert [row["step"] for row in series] == list(range(1, _STEPS + 1))
    assert farm.daemon.attempts(job_id)[1]["first_step"] > 1
    assert "Traceback" not in farm.daemon.log


def test_a_checkpoint_that_does_not_fit_pauses_the_job(
    disk_daemon: DaemonProcess, disk: SmallDisk, tiny_model: Path, tmp_path: Path
) -> None:
    _kept_after_a_full_disk(make_farm(disk_daemon, tiny_model, tmp_path), disk, 3 * _MB)


@pytest.mark.full
def test_a_disk_with_no_byte_left_pauses_the_job_too(
    disk_daemon: DaemonProcess, disk: SmallDisk, tiny_model: Path, tmp_path: Path
) -> None:
    _kept_after_a_full_disk(make_farm(disk_daemon, tiny_model, tmp_path), disk, 0)


def _leftovers(home: Path) -> list[str]:
    names = [path.name for folder in ("uploads", "datasets") for path in (home / folder).iterdir()]
    return sorted(names)


@pytest.mark.quick
def test_uploads_onto_a_full_disk_leave_nothing(
    disk_daemon: DaemonProcess, disk: SmallDisk, tmp_path: Path
) -> None:
    small = write_jsonl(tmp_path / "small.jsonl", chat_rows(20))
    first = disk_daemon.upload(small)
    before = _leftovers(disk_daemon.home)
    line = b'{"prompt": "p", "completion": "' + b"c" * 1000 + b'"}\n'

    def declared() -> httpx.Response:
        return client.put("/api/v1/datasets?name=big", content=line * 70_000)

    def streamed() -> httpx.Response:
        chunks = (line * 1000 for _ in range(70))
        return client.put("/api/v1/datasets?name=big", content=chunks)

    def stored_but_not_checked() -> httpx.Response:
        # The file fits, its normalised copy does not.
        return client.put("/api/v1/datasets?name=big", content=line * 38_000)

    with disk_daemon.http() as client:
        for attempt in (declared, streamed, stored_but_not_checked):
            refused = attempt()
            assert (refused.status_code, refused.json()["code"]) == (507, "DISK-FULL"), attempt
            assert _leftovers(disk_daemon.home) == before
            assert [d["id"] for d in disk_daemon.api("GET", "/datasets")] == [first]
        disk.fill()
        # Not even the database has room now.
        other = write_jsonl(tmp_path / "other.jsonl", chat_rows(21)).read_bytes()
        refused = client.put("/api/v1/datasets?name=other", content=other)
        assert (refused.status_code, refused.json()["code"]) == (507, "DISK-FULL")
        assert client.get("/api/v1/datasets").json()[0]["id"] == first, "reading still works"
        disk.free()
        assert client.put("/api/v1/datasets?name=other", content=other).status_code == 201
    assert "Traceback" not in disk_daemon.log


@pytest.mark.parametrize("command", ["slidepack.web", "slidepack.cli.main"])
def test_a_read_only_data_directory_is_one_line(disk: SmallDisk, command: str) -> None:
    disk.remount("ro")
    arguments = ["demo", "--headless"] if command.endswith("main") else []
    code = f"import sys; from {command} import main; sys.exit(main())"
    if command == "slidepack.web":
        code = "import runpy; runpy.run_module('slidepack.web', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"SLIDEPACK_HOME": str(disk.mount), "SLIDEPACK_PORT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    disk.remount("rw")
    assert done.returncode == 41
    (line,) = done.stderr.splitlines()
    assert line.startswith("DISK-UNWRITABLE: ")
    assert "Read-only file system" in line
