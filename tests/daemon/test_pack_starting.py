"""Packs begin beside a user who cancels, and with jobs of which one is broken."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.runs import MACHINE, tiny_spec
from support.stores import Stores, open_stores

from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.hardware import DeviceNow
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.packs import PackRecord
from slidepack.daemon.supervisor.launching import Launcher, MadeAttempt, StartedWorker, Waits
from slidepack.daemon.supervisor.pack_starting import PackStarter
from slidepack.daemon.supervisor.run_folders import RunFolders
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.pack import PackFolder
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.memory_pack import plan_pack
from slidepack.engine.shape import read_shape

_DEVICE = DeviceNow(key="cpu", name="cpu", card="", machine=MACHINE)


class _Launcher(Launcher):
    """Starts no process."""

    def start(
        self,
        made: list[MadeAttempt],  # type: ignore[override]  # as much of it as is used
        folder: RunFolder | PackFolder,
        nonce: str,
        now: float,
        *,
        pack: PackRecord | None,
    ) -> StartedWorker:
        ids = tuple(one.job.id for one in made)
        return StartedWorker(nonce, None, ids)  # type: ignore[arg-type]  # nobody asks for it


class _Around:
    """Stands for outcomes, model check and plans."""

    def settled(self, *_arguments: object) -> None:
        pass

    def why_wait(self, _spec: JobSpec) -> str:
        return ""

    def ancestors(self, _job: JobRecord) -> tuple[int, ...]:
        return ()

    def of_pack(
        self, lanes: list[tuple[JobRecord, JobSpec]], _later: object, _device: object
    ) -> tuple[RunPlan, int]:
        specs = [spec for _, spec in lanes]
        shape = read_shape(Path(specs[0].base.path))
        return plan_pack(specs, [], shape, MACHINE, exact=False), len(lanes)


class _House:
    """A data directory with three jobs of one base, and what starts them."""

    def __init__(self, tmp_path: Path) -> None:
        self.paths = DataPaths(tmp_path / "home")
        self.paths.create()
        self.stores: Stores = open_stores(self.paths.home)
        spec = tiny_spec(tmp_path / "base")
        spec = msgspec.structs.replace(
            spec, dataset=msgspec.structs.replace(spec.dataset, dataset_id="1")
        )
        self.jobs = [self.stores.jobs.add(spec, 0.0) for _ in range(3)]
        self.meanwhile: Callable[[int], None] = lambda job_id: None

    def start(self, *jobs: JobRecord) -> StartedWorker | Waits | None:
        stores, around = self.stores, _Around()
        launcher = _Launcher(
            database=stores.database,
            jobs=stores.jobs,
            attempts=stores.attempts,
            packs=stores.packs,
            outcomes=around,
        )
        starter = PackStarter(
            launcher,
            models=around,  # type: ignore[arg-type]  # as much of it as is used
            plans=around,  # type: ignore[arg-type]  # as much of it as is used
            folders=RunFolders(
                attempts=stores.attempts,
                plans=around,  # type: ignore[arg-type]  # as much of it as is used
                paths=self.paths,
                disk_floor_bytes=0,
                also=lambda job_id, _folder: self.meanwhile(job_id),
            ),
            paths=self.paths,
            room=DiskRoom(self.paths.home, 0),
            exact=False,
        )
        lanes = [(job, stores.jobs.spec(job.id)) for job in jobs]
        return starter.start(lanes, [], _DEVICE, 1.0, alone=False)

    def states(self) -> list[str]:
        return [self.stores.jobs.get(job.id).state for job in self.jobs]


@pytest.fixture
def house(tmp_path: Path) -> _House:
    return _House(tmp_path)


def _cancel(house: _House, job: JobRecord) -> None:
    house.stores.jobs.move(job.id, "cancelled", "cancelled", 1.0)


def _delete(house: _House, job: JobRecord) -> None:
    _cancel(house, job)
    house.stores.jobs.remove(job.id)


@pytest.mark.parametrize("leaves", [_cancel, _delete])
def test_a_job_that_leaves_while_its_pack_is_made_fails_no_other(
    house: _House, leaves: Callable[[_House, JobRecord], None]
) -> None:
    first, second, third = house.jobs

    def meanwhile(job_id: int) -> None:
        if job_id == third.id:
            leaves(house, second)

    house.meanwhile = meanwhile
    outcome = house.start(first, second, third)
    assert isinstance(outcome, Waits)
    assert f"job {second.id} left the queue" in outcome.reason
    house.jobs = [first, third]
    assert house.states() == ["queued", "queued"]
    assert house.stores.packs.live() == []
    assert list(house.paths.packs.iterdir()) == []
    house.meanwhile = lambda job_id: None
    started = house.start(first, third)
    assert isinstance(started, StartedWorker)
    assert started.job_ids == (first.id, third.id)
    assert house.states() == ["starting", "starting"]


def test_the_first_of_a_pack_may_leave_too(house: _House) -> None:
    first, second, third = house.jobs
    house.meanwhile = lambda job_id: _cancel(house, first) if job_id == third.id else None
    assert house.start(first, second, third) is None
    assert house.states() == ["cancelled", "queued", "queued"]


def test_a_job_that_cannot_begin_fails_alone(house: _House) -> None:
    first, second, third = house.jobs

    def meanwhile(job_id: int) -> None:
        if job_id == first.id:
            raise SlidepackError("RUN-FOLDER-BROKEN", "Its parent's checkpoint cannot be read.")

    house.meanwhile = meanwhile
    started = house.start(first, second, third)
    assert isinstance(started, StartedWorker)
    assert started.job_ids == (second.id, third.id)
    assert house.states() == ["failed", "starting", "starting"]
    error = house.stores.jobs.get(first.id).error
    assert error is not None
    assert error.code == "RUN-FOLDER-BROKEN"
