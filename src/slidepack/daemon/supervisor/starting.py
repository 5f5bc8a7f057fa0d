"""Starts the job at the head of the queue, or says why it waits."""

import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.hardware import HardwareMonitor, Waiting, machine_now
from slidepack.daemon.paths import DataPaths, disk_error
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.settings import Settings
from slidepack.daemon.states import JobState
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.supervisor.model_check import ModelCheck
from slidepack.daemon.supervisor.outcomes import Outcomes
from slidepack.daemon.supervisor.worker_process import (
    WorkerProcess,
    current_boot_id,
    start_worker,
)
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder, RunIdentity
from slidepack.engine.memory import GIB, Machine, plan_run
from slidepack.engine.shape import read_shape


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """A worker and the nonce it is known by."""

    nonce: str
    process: WorkerProcess


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a job was not started."""

    reason: str
    soon: bool
    """Whether what it waits for may come any moment, so that nothing overtakes it yet."""


class Starter:
    """Plans and starts attempts."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        attempts: AttemptStore,
        catalogue: Catalogue,
        hardware: HardwareMonitor,
        paths: DataPaths,
        settings: Settings,
        room: DiskRoom,
        outcomes: Outcomes,
        reserved_vram_bytes: Callable[[], int],
    ) -> None:
        """Bind what a start needs.

        Args:
            database: for transactions over several stores.
            jobs: the queue.
            attempts: the tries at its jobs.
            catalogue: models and datasets.
            hardware: what there is and what is free.
            paths: the data directory.
            settings: which device is used.
            room: the disk.
            outcomes: told of a job that fails before it starts.
            reserved_vram_bytes: of each card, kept free by the policy.
        """
        self._db = database
        self._jobs = jobs
        self._attempts = attempts
        self._hardware = hardware
        self._paths = paths
        self._device = settings.device
        self._room = room
        self._models = ModelCheck(catalogue)
        self._outcomes = outcomes
        self._reserved_vram_bytes = reserved_vram_bytes

    def start(self, job: JobRecord, now: float) -> StartedWorker | Waits | None:
        """Start a job, or say why it waits; None where it failed for good, or is gone."""
        spec = self._jobs.spec(job.id)
        try:
            waits = self._models.why_wait(spec)
            if waits:
                return Waits(waits, soon=False)
            plan = self._plan(job, spec)
            if isinstance(plan, Waits):
                return plan
            shortage = self._room.shortage(plan)
            if shortage:
                return Waits(f"waits for room: {shortage}", soon=True)
            return self._launch(job, spec, plan, now)
        except SlidepackError as error:
            if error.report.code.startswith("DISK-"):
                # The database cannot be written; the job waits, and the next tick tries again.
                raise
            with self._db.transaction():
                # A user may have cancelled or paused it meanwhile.
                if self._jobs.get(job.id).state == "queued":
                    self._jobs.set_error(job.id, error.report)
                    self._jobs.move(job.id, "failed", error.report.line(), now)
                    self._outcomes.settled(job, "failed", error.report.line(), error.report, now)
            return None

    def shortage(self, job: JobRecord) -> str:
        """Return why a job that ran before has no room on the disk now; empty where it has.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        attempts = self._attempts.of(job.id)
        return self._room.shortage(_folder(attempts[-1]).read_plan()) if attempts else ""

    def _plan(self, job: JobRecord, spec: JobSpec) -> RunPlan | Waits:
        """Return a plan for what is free now, or what is to be waited for."""
        report = self._hardware.report()
        machine = self._machine(report)
        if isinstance(machine, Waiting):
            return Waits(machine.reason, soon=True)
        earlier = self._earlier_plan(job)
        if earlier is not None:
            reason = why_not_again(earlier, machine)
            return Waits(reason, soon=True) if reason else earlier
        shape = read_shape(Path(spec.base.path))
        try:
            return plan_run(spec, shape, machine)
        except SlidepackError as error:
            everything = machine_now(report, whole=True, device=self._device)
            assert not isinstance(everything, Waiting)
            # Where not even the whole machine would do, this raises and the job fails.
            plan_run(spec, shape, everything)
            return Waits(f"waits for memory: {error.report.why}", soon=True)

    def _machine(self, report: HardwareReport) -> Machine | Waiting:
        """Return what a run may use now, less the VRAM that the policy keeps free."""
        machine = machine_now(report, whole=False, device=self._device)
        if isinstance(machine, Waiting):
            return machine
        free = max(0, machine.device_free_bytes - self._reserved_vram_bytes())
        return msgspec.structs.replace(machine, device_free_bytes=free)

    def _earlier_plan(self, job: JobRecord) -> RunPlan | None:
        """Return the plan of the newest attempt that left a checkpoint, or None.

        A resumed run keeps device, precision, threads and micro-batches, because its results
        depend on them; another job's checkpoint is in the form that its own plan gave it.
        """
        for job_id in (job.id, *self._ancestors(job)):
            for attempt in reversed(self._attempts.of(job_id)):
                if _folder(attempt).list_checkpoints():
                    return _folder(attempt).read_plan()
        return None

    def _ancestors(self, job: JobRecord) -> Iterator[int]:
        """Yield the jobs whose checkpoints a job goes on from, the nearest first."""
        adopts = job.adopts
        while adopts is not None:
            yield adopts
            adopts = self._jobs.get(adopts).adopts

    def _launch(
        self, job: JobRecord, spec: JobSpec, plan: RunPlan, now: float
    ) -> StartedWorker | Waits:
        attempts = self._attempts.of(job.id)
        number = len(attempts) + 1
        folder = RunFolder(self._paths.attempt(job.id, number))
        identity = RunIdentity(
            job_id=str(job.id),
            attempt=number,
            nonce=secrets.token_hex(16),
            resume_from=_checkpoints_of(attempts),
            adopt_from=tuple(
                path
                for ancestor in self._ancestors(job)
                for path in _checkpoints_of(self._attempts.of(ancestor))
            ),
            disk_floor_bytes=self._room.floor_bytes,
        )
        try:
            # Left by a daemon that died between making the folder and recording the attempt.
            shutil.rmtree(folder.root, ignore_errors=True)
            folder.create(spec, plan, identity)
        except OSError as error:
            why = disk_error(error, folder.root).report.line()
            return Waits(f"waits: {why}", soon=True)
        with self._db.transaction():
            self._jobs.move(job.id, "starting", plan.reason, now)
            self._jobs.set_error(job.id, None)
            self._attempts.add(job.id, number, str(folder.root), identity.nonce, now)
        return self._start_worker(job, number, folder, identity.nonce, now)

    def _start_worker(
        self, job: JobRecord, number: int, folder: RunFolder, nonce: str, now: float
    ) -> StartedWorker | Waits:
        try:
            process = start_worker(folder, nonce)
        except OSError as error:
            # No memory for a process, or no room for its log: that passes, and was no attempt.
            reason = f"waits: its worker could not be started ({error})"
            with self._db.transaction():
                self._attempts.remove(job.id, number)
                wanted = self._jobs.get(job.id).wanted
                if wanted in ("cancel", "pause"):
                    asked: JobState = "cancelled" if wanted == "cancel" else "paused"
                    self._jobs.move(job.id, asked, asked, now)
                else:
                    self._jobs.move(job.id, "queued", reason, now)
            return Waits(reason, soon=True)
        self._attempts.set_process(
            job.id,
            number,
            pid=process.pid,
            started=process.started_ticks,
            boot_id=current_boot_id(),
        )
        return StartedWorker(nonce, process)


def _folder(attempt: AttemptRecord) -> RunFolder:
    return RunFolder(Path(attempt.folder))


def _checkpoints_of(attempts: Sequence[AttemptRecord]) -> tuple[str, ...]:
    """Return the checkpoints of a job's attempts, newest first."""
    return tuple(
        str(checkpoint)
        for attempt in reversed(attempts)
        for checkpoint in _folder(attempt).list_checkpoints()
    )


def why_not_again(plan: RunPlan, machine: Machine) -> str:
    """Return why an earlier plan cannot run on this machine now, or an empty string."""
    if plan.device != machine.device:
        return f"waits for {plan.device}, on which it began; this machine offers {machine.device}"
    wanted = [("RAM", plan.predicted_host_bytes, machine.ram_available_bytes)]
    if plan.device != "cpu":
        wanted.append(("VRAM", plan.predicted_device_bytes, machine.device_free_bytes))
    for what, needed, free in wanted:
        if needed > free:
            sizes = f"{needed / GIB:.1f} GiB needed, {free / GIB:.1f} GiB free"
            return f"waits for memory ({what}): {sizes}"
    return ""
