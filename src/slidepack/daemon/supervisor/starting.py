"""Starts runs that have a worker of their own."""

from pathlib import Path
from typing import Final

from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.hardware import DeviceNow, Waiting
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.supervisor.keeping import replaceable_bytes
from slidepack.daemon.supervisor.launching import (
    Launcher,
    MadeAttempt,
    StartedWorker,
    Waits,
    refused,
)
from slidepack.daemon.supervisor.model_check import ModelCheck
from slidepack.daemon.supervisor.run_folders import RunFolders, new_nonce
from slidepack.daemon.supervisor.run_plans import NoRoom, RunPlans
from slidepack.daemon.supervisor.tier_leftovers import remove_tier_folders
from slidepack.daemon.tier_room import TierRoom
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import FullMethod, JobSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.memory_pack import lane_disk_bytes
from slidepack.engine.shape import read_shape

__all__ = ["Starter"]

_HELD: Final = "waits until its last worker has let go of what it has on drives"


class Starter:
    """Plans and starts workers for one job each."""

    def __init__(
        self,
        launcher: Launcher,
        *,
        models: ModelCheck,
        plans: RunPlans,
        folders: RunFolders,
        paths: DataPaths,
        room: DiskRoom,
    ) -> None:
        """Bind what a start needs.

        Args:
            launcher: records attempts and starts workers.
            models: says whether a job's model is what it was.
            plans: how runs use the devices.
            folders: makes run folders.
            paths: the data directory.
            room: the disk.
        """
        self._launcher = launcher
        self._models = models
        self._plans = plans
        self._folders = folders
        self._paths = paths
        self._room = room
        self._tier_room = TierRoom(paths.home, room)

    def devices(self) -> list[DeviceNow] | Waiting:
        """Return the devices with what a run may use of them now."""
        return self._plans.devices()

    def run(
        self, job: JobRecord, spec: JobSpec, device: DeviceNow, now: float
    ) -> StartedWorker | Waits | None:
        """Start a worker for one job, or say why it waits; None where it failed, or is gone."""
        try:
            waits = self._models.why_wait(spec)
            if waits:
                return Waits(waits, soon=False)
            # First: what a killed worker left there must not be what its job waits for.
            if not self._clears_drives(job, spec):
                return Waits(_HELD, soon=True)
            plan = self._plans.of_run(job, spec, device)
            if isinstance(plan, Waiting):
                return Waits(plan.reason, soon=True)
            shortage = self._lacks(job, plan, spec)
            if shortage:
                return Waits(f"waits for room: {shortage}", soon=True)
            return self._launch_run(job, spec, plan, now)
        except SlidepackError as error:
            self._launcher.fail(job, error, now)
            return None

    def shortage(self, job: JobRecord) -> str:
        """Return why a job that ran before has no room on the disks now; empty where it has.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN; or the job could not start at all.
            OSError: a disk does not answer.
        """
        attempts = self._launcher.attempts.of(job.id)
        if not attempts:
            return ""
        folder = RunFolder(Path(attempts[-1].folder))
        spec = folder.read_spec()
        if attempts[-1].pack_id is not None:
            return self._room.shortage(lane_disk_bytes(spec, read_shape(Path(spec.base.path))))
        if not self._clears_drives(job, spec):
            return _HELD
        plan: RunPlan | NoRoom = folder.read_plan()
        if isinstance(spec.method, FullMethod):
            # It would go on with another placement, and maybe on other drives.
            plan = self._next_plan(job, spec) or plan
        return plan.reason if isinstance(plan, NoRoom) else self._lacks(job, plan, spec)

    def _lacks(self, job: JobRecord, plan: RunPlan, spec: JobSpec) -> str:
        attempts = [RunFolder(Path(one.folder)) for one in self._launcher.attempts.of(job.id)]
        return self._tier_room.shortage(plan, spec, replaceable_bytes(attempts))

    def _next_plan(self, job: JobRecord, spec: JobSpec) -> RunPlan | NoRoom | None:
        """Return the plan with which a job would start now, or why drives have no room for it;
        None where it waits for something else."""
        devices = self._plans.devices()
        if isinstance(devices, Waiting):
            return None
        plans = [self._plans.of_run(job, spec, device) for device in devices]
        runs = (plan for plan in plans if isinstance(plan, RunPlan))
        refused = (plan for plan in plans if isinstance(plan, NoRoom))
        return next(runs, None) or next(refused, None)

    def _clears_drives(self, job: JobRecord, spec: JobSpec) -> bool:
        """Remove what an attempt that has ended left on drives; say whether nobody holds it."""
        if not isinstance(spec.method, FullMethod):
            return True
        return remove_tier_folders(self._paths.jobs / str(job.id))

    def _launch_run(
        self, job: JobRecord, spec: JobSpec, plan: RunPlan, now: float
    ) -> StartedWorker | Waits:
        nonce = new_nonce()
        try:
            number, folder = self._folders.make(job, spec, plan, nonce)
        except OSError as error:
            return refused(error, self._paths.jobs)
        attempt = MadeAttempt(job, number, folder)
        with self._launcher.database.transaction():
            self._launcher.begin(attempt, nonce, plan, plan.reason, now, pack_id=None)
        return self._launcher.start([attempt], folder, nonce, now, pack=None)
