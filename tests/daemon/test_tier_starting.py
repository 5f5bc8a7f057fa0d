"""Jobs whose state goes to drives: what they wait for, and what they no longer wait for."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from support.disks import SmallDisk, small_disk
from support.job_folders import write_checkpoint
from support.runs import tiny_spec
from support.stores import Stores, open_stores

from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.drive_wears import DriveWears
from slidepack.daemon.hardware import DeviceNow, Waiting
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.probe.report import HardwareReport, probe_hardware
from slidepack.daemon.probe.software import KvikioBuild, SoftwareInfo, TorchBuild, TritonBuild
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.supervisor.following import PlannedMove
from slidepack.daemon.supervisor.launching import Launcher, Waits
from slidepack.daemon.supervisor.next_job import NextJob
from slidepack.daemon.supervisor.run_folders import RunFolders
from slidepack.daemon.supervisor.run_plans import RunPlans
from slidepack.daemon.supervisor.starting import Starter
from slidepack.daemon.tier_drives import TierDrives
from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.contract.job import FullMethod, JobSpec, NvmeUse
from slidepack.engine.contract.plan import NvmePlan, RunPlan
from slidepack.engine.contract.runfolder import RunFolder, RunIdentity
from slidepack.engine.tier_folders import take_folder, tier_folder

_ASKED = NvmeUse(moments=1.0, master=1.0)
_SOFTWARE = SoftwareInfo(
    python="3",
    visible_devices="",
    torch=TorchBuild(
        version="2",
        build="cpu",
        build_version="",
        arch_list=(),
        devices=(),
        warnings=(),
        problem="",
    ),
    triton=TritonBuild(version="", problem=""),
    kvikio=KvikioBuild(version="", gds_available=False, problem=""),
)


@dataclass
class _House:
    """A data directory, its stores, and what starts jobs that train on the CPU."""

    home: Path
    stores: Stores
    drives: tuple[Path, ...]

    @classmethod
    def at(cls, home: Path, *drives: Path) -> "_House":
        DataPaths(home).create()
        return cls(home, open_stores(home), drives)

    def report(self) -> HardwareReport:
        """Stand for the monitor: the machine as it is, this very moment."""
        settings = Settings(nvme="on", nvme_folders=", ".join(map(str, self.drives)))
        report = probe_hardware(self.home, software=False)
        tier = TierDrives(self.home, settings, DriveWears()).now()
        return msgspec.structs.replace(report, software=_SOFTWARE, tier=tier)

    def plans(self) -> RunPlans:
        return RunPlans(
            jobs=self.stores.jobs,
            attempts=self.stores.attempts,
            hardware=self,  # type: ignore[arg-type]  # as much of it as is used
            settings=Settings(device="cpu"),
            reserved_vram_bytes=lambda: 0,
        )

    def device(self) -> DeviceNow:
        found = self.plans().devices()
        assert not isinstance(found, Waiting)
        return found[0]

    def starter(self) -> Starter:
        stores, paths, plans = self.stores, DataPaths(self.home), self.plans()
        launcher = Launcher(
            database=stores.database,
            jobs=stores.jobs,
            attempts=stores.attempts,
            packs=stores.packs,
            outcomes=_Nobody(),
        )
        folders = RunFolders(attempts=stores.attempts, plans=plans, paths=paths, disk_floor_bytes=0)
        return Starter(
            launcher,
            models=_Nobody(),  # type: ignore[arg-type]  # as much of it as is used
            plans=plans,
            folders=folders,
            paths=paths,
            room=DiskRoom(self.home, 0),
        )

    def next_job(self) -> NextJob:
        nobody = _Nobody()
        return NextJob(
            database=self.stores.database,
            jobs=self.stores.jobs,
            attempts=self.stores.attempts,
            packs=self.stores.packs,
            starter=self.starter(),
            pack_starter=nobody,  # type: ignore[arg-type]  # not used
            gate=nobody,
            outcomes=nobody,
            plan=nobody,
            packing=False,
            retry_seconds=5.0,
        )

    def add(self, spec: JobSpec) -> JobRecord:
        asked = msgspec.structs.replace(
            spec, dataset=msgspec.structs.replace(spec.dataset, dataset_id="1")
        )
        return self.stores.jobs.add(asked, 0.0)

    def plan(self, job: JobRecord) -> RunPlan | Waiting:
        return self.plans().of_run(job, self.stores.jobs.spec(job.id), self.device())

    def tried(self, job: JobRecord, plan: RunPlan) -> RunFolder:
        """Record an attempt that has left a checkpoint and has ended."""
        folder = RunFolder(DataPaths(self.home).attempt(job.id, 1))
        spec = self.stores.jobs.spec(job.id)
        folder.create(spec, plan, RunIdentity(job_id=str(job.id), attempt=1, nonce="n"))
        write_checkpoint(folder.checkpoints / "step-00000001", True)
        self.stores.attempts.add(job.id, 1, str(folder.root), "n", 1.0)
        self.stores.attempts.end(self.stores.attempt(job.id), "failed", 40, 2.0)
        return folder


class _Nobody:
    """Stands for gate, outcomes, model check and the queue's plan: nothing is in the way."""

    def why_wait(self, *_arguments: object) -> str:
        return ""

    def why_leave(self, *_arguments: object) -> str:
        return ""

    def settled(self, *_arguments: object) -> None:
        pass

    def starts(self, now: float) -> None:
        return None

    def why(self, job_id: int) -> str:
        return ""

    def moves(self, now: float) -> list[PlannedMove]:
        return []

    def changed(self) -> None:
        pass


def _tier(plan: RunPlan | Waiting) -> NvmePlan:
    assert isinstance(plan, RunPlan), plan
    assert plan.full is not None
    assert plan.full.nvme is not None
    return plan.full.nvme


def _spec(tmp_path: Path, use: NvmeUse = _ASKED) -> JobSpec:
    return tiny_spec(tmp_path / "base", method=FullMethod(nvme=use))


def _state_bytes(house: _House, job: JobRecord) -> int:
    return _tier(house.plan(job)).held_bytes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 16) as made:
        yield made


def test_full_drives_make_a_job_wait_with_its_reason_and_hold_up_nobody(
    tmp_path: Path, disk: SmallDisk
) -> None:
    house = _House.at(tmp_path / "home", disk.mount)
    full, other = house.add(_spec(tmp_path)), house.add(_spec(tmp_path))
    disk.fill(64 << 10)
    queue = house.next_job()
    assert queue.start(1.0) == []
    reason = house.stores.jobs.get(full.id).reason
    assert "waits for room" in reason
    assert str(disk.mount) in reason
    assert house.stores.jobs.get(full.id).state == "queued"
    assert "waits" in house.stores.jobs.get(other.id).reason
    disk.free()
    assert isinstance(house.plan(full), RunPlan)


def test_what_a_killed_worker_left_is_not_what_its_job_waits_for(
    tmp_path: Path, disk: SmallDisk
) -> None:
    house = _House.at(tmp_path / "home", disk.mount)
    job = house.add(_spec(tmp_path))
    plan = house.plan(job)
    assert isinstance(plan, RunPlan)
    house.tried(job, plan)
    left = tier_folder(disk.mount, DataPaths(house.home).jobs / str(job.id))
    lock = take_folder(left)
    (left / "00000-000001.state").write_bytes(b"x" * (disk.free_bytes - (64 << 10)))
    spec, device = house.stores.jobs.spec(job.id), house.device()
    held = house.starter().run(job, spec, device, 3.0)
    assert isinstance(held, Waits)
    assert "last worker" in held.reason
    os.close(lock)
    # Pretend that no process can be had: all else would have been given.
    (DataPaths(house.home).jobs / str(job.id) / "attempt-002").write_text("in the way")
    outcome = house.starter().run(job, spec, device, 4.0)
    assert not left.exists()
    assert isinstance(outcome, Waits)
    assert "waits for room" in outcome.reason, "the look at the drives is older"
    again = house.starter().run(job, spec, house.device(), 5.0)
    assert isinstance(again, Waits)
    assert "room" not in again.reason


def test_a_job_that_goes_on_leaves_a_drive_that_is_full_or_away(
    tmp_path: Path, disk: SmallDisk
) -> None:
    old, new = disk.mount / "old", tmp_path / "new"
    new.mkdir()
    old.mkdir()
    house = _House.at(tmp_path / "home", old)
    job = house.add(_spec(tmp_path))
    plan = house.plan(job)
    assert _tier(plan).folders == (str(old),)
    assert isinstance(plan, RunPlan)
    house.tried(job, plan)
    disk.fill(64 << 10)
    assert isinstance(house.plan(job), Waiting)
    house.drives = (new,)
    moved = house.plan(job)
    assert _tier(moved).folders == (str(new),)
    assert isinstance(moved, RunPlan)
    assert moved.micro_batch_tokens == plan.micro_batch_tokens
    # Below a mount point whose drive is away nothing is made.
    new.rmdir()
    away = house.starter().run(job, house.stores.jobs.spec(job.id), house.device(), 3.0)
    assert isinstance(away, Waits)
    assert f"{new} for its state is not there" in away.reason
    assert "nvme_folders" in away.reason
    assert not new.exists()


def test_a_full_drive_keeps_its_job_paused_until_that_drive_has_room(
    tmp_path: Path, disk: SmallDisk
) -> None:
    house = _House.at(tmp_path / "home", disk.mount)
    job = house.add(_spec(tmp_path))
    plan = house.plan(job)
    assert isinstance(plan, RunPlan)
    house.tried(job, plan)
    house.stores.jobs.move(job.id, "paused", "full", 2.0)
    house.stores.jobs.set_error(
        job.id, ErrorReport(code="DISK-FULL", what="Full.", why="x", fix="y")
    )
    disk.fill(64 << 10)
    assert not house.next_job().wake_paused(100.0)
    assert str(disk.mount) in house.starter().shortage(job)
    disk.free()
    assert house.next_job().wake_paused(200.0)
    assert house.stores.jobs.get(job.id).state == "queued"


def test_folders_that_a_job_names_are_looked_at_as_well(tmp_path: Path, disk: SmallDisk) -> None:
    house = _House.at(tmp_path / "home")
    named = msgspec.structs.replace(_ASKED, folders=(str(disk.mount),))
    job = house.add(_spec(tmp_path, named))
    disk.fill(64 << 10)
    waits = house.starter().run(job, house.stores.jobs.spec(job.id), house.device(), 1.0)
    assert isinstance(waits, Waits)
    assert f"needed in {disk.mount}" in waits.reason


def test_where_checkpoints_are_copies_a_drive_needs_room_for_one_state(
    tmp_path: Path, disk: SmallDisk
) -> None:
    house = _House.at(tmp_path / "home", disk.mount)
    job = house.add(_spec(tmp_path))
    spec = house.stores.jobs.spec(job.id)
    state = _state_bytes(house, job)
    disk.fill(2 * state)
    plan = house.plan(job)
    assert isinstance(plan, RunPlan), "one would do, and links would take three"
    assert house.starter().shortage(job) == ""
    # The copies are the data directory's.
    with small_disk(tmp_path / "data", 16) as data:
        cramped = _House.at(data.mount / "home", disk.mount)
        job = cramped.add(_spec(tmp_path))
        data.fill(2 * state)
        waits = cramped.starter().run(job, spec, cramped.device(), 1.0)
        assert isinstance(waits, Waits)
        assert "needed on the disk" in waits.reason


def test_a_job_with_room_for_a_run_has_room_to_go_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        house = _House.at(disk.mount / "home")
        job = house.add(tiny_spec(tmp_path / "base", method=FullMethod()))
        spec, plan = house.stores.jobs.spec(job.id), house.plan(job)
        assert isinstance(plan, RunPlan)
        folder = house.tried(job, plan)
        each = plan.predicted_disk_bytes // 3
        for step in (2, 3):
            checkpoint = folder.checkpoints / f"step-{step:08d}"
            write_checkpoint(checkpoint, True)
            (checkpoint / "tensors").write_bytes(b"x" * each)
        # A third and the result are what its next checkpoint needs beside the two that there are.
        disk.fill(plan.predicted_disk_bytes - 2 * each + (64 << 10))
        assert house.starter().shortage(job) == ""
        disk.fill(each // 2)
        assert "needed on the disk" in house.starter().shortage(job)
        waits = house.starter().run(job, spec, house.device(), 3.0)
        assert isinstance(waits, Waits)
        assert "needed on the disk" in waits.reason
