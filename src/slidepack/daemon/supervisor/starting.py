"""Starts the job at the head of the queue, or says why it waits."""

import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slidepack.daemon.disk_room import DiskRoom, bytes_below
from slidepack.daemon.hardware import HardwareMonitor, Waiting, machine_now
from slidepack.daemon.imports import unchanged
from slidepack.daemon.paths import DataPaths, disk_error
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.catalogue import Catalogue, ModelRecord
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
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
from slidepack.engine.importer.fingerprint import content_hash, quick_stamp
from slidepack.engine.memory import GIB, Machine, plan_run
from slidepack.engine.shape import read_shape


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """A worker and the nonce it is known by."""

    nonce: str
    process: WorkerProcess


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
        alive: Callable[[], None],
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
            alive: called again and again in what may take minutes.
        """
        self._db = database
        self._jobs = jobs
        self._attempts = attempts
        self._catalogue = catalogue
        self._hardware = hardware
        self._paths = paths
        self._device = settings.device
        self._room = room
        self._outcomes = outcomes
        self._reserved_vram_bytes = reserved_vram_bytes
        self._alive = alive

    def start(self, job: JobRecord, now: float) -> StartedWorker | None:
        """Start a job, or return None where it waits (it says why) or failed for good."""
        spec = self._jobs.spec(job.id)
        try:
            self._check_model(spec)
            plan = self._plan(job, spec)
            if plan is None:
                return None
            shortage = self._shortage_of(job.id, plan)
            if shortage:
                self._jobs.explain(job.id, f"waits for room: {shortage}")
                return None
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
        """Return why a job that ran before has no room on the disk now; empty where it has."""
        attempts = self._attempts.of(job.id)
        if not attempts:
            return ""
        plan = RunFolder(Path(attempts[-1].folder)).read_plan()
        return self._shortage_of(job.id, plan)

    def _shortage_of(self, job_id: int, plan: RunPlan) -> str:
        folders = [Path(attempt.folder) for attempt in self._attempts.of(job_id)]
        return self._room.shortage(plan, sum(bytes_below(folder) for folder in folders))

    def _check_model(self, spec: JobSpec) -> None:
        model = self._catalogue.model(spec.base.model_id)
        if model.content_hash == spec.base.content_hash and (
            unchanged(model) or self._same_content(model)
        ):
            return
        raise SlidepackError(
            "MODEL-CHANGED",
            f"The model {model.id} has changed since it was added.",
            why=f"files in {spec.base.path} are gone, or have another size or time",
            fix="Add the model again with `slidepack models add`, then queue the job again.",
        )

    def _same_content(self, model: ModelRecord) -> bool:
        """Settle by content whether files with another time or size mark are other files."""
        try:
            found = content_hash(Path(model.path), lambda _read: self._alive())
            if found != model.content_hash:
                return False
            self._catalogue.set_stamp(model.id, quick_stamp(Path(model.path)))
        except OSError:
            return False
        return True

    def _plan(self, job: JobRecord, spec: JobSpec) -> RunPlan | None:
        """Return a plan for what is free now, or None where waiting can help."""
        report = self._hardware.report()
        machine = self._machine(report, whole=False)
        if isinstance(machine, Waiting):
            self._jobs.explain(job.id, machine.reason)
            return None
        earlier = self._earlier_plan(job.id)
        if earlier is None and job.adopts is not None:
            # Another job's checkpoint is in the form that its own plan gave it.
            earlier = self._earlier_plan(job.adopts)
        if earlier is not None:
            reason = why_not_again(earlier, machine)
            if reason:
                self._jobs.explain(job.id, reason)
            return None if reason else earlier
        shape = read_shape(Path(spec.base.path))
        try:
            return plan_run(spec, shape, machine)
        except SlidepackError as error:
            everything = self._machine(report, whole=True)
            assert not isinstance(everything, Waiting)
            # Where not even the whole machine would do, this raises and the job fails.
            plan_run(spec, shape, everything)
            self._jobs.explain(job.id, f"waits for memory: {error.report.why}")
            return None

    def _machine(self, report: HardwareReport, *, whole: bool) -> Machine | Waiting:
        """Return what a run may use, less the VRAM that the policy keeps free."""
        machine = machine_now(report, whole=whole, device=self._device)
        if isinstance(machine, Waiting):
            return machine
        free = max(0, machine.device_free_bytes - self._reserved_vram_bytes())
        return msgspec.structs.replace(machine, device_free_bytes=free)

    def _earlier_plan(self, job_id: int) -> RunPlan | None:
        """Return the plan of the newest attempt that left a checkpoint, or None.

        A resumed run keeps device, precision, threads and micro-batches, because its results
        depend on them.
        """
        for attempt in reversed(self._attempts.of(job_id)):
            folder = RunFolder(Path(attempt.folder))
            if folder.list_checkpoints():
                return folder.read_plan()
        return None

    def _launch(
        self, job: JobRecord, spec: JobSpec, plan: RunPlan, now: float
    ) -> StartedWorker | None:
        attempts = self._attempts.of(job.id)
        number = len(attempts) + 1
        folder = RunFolder(self._paths.attempt(job.id, number))
        nonce = secrets.token_hex(16)
        identity = RunIdentity(
            job_id=str(job.id),
            attempt=number,
            nonce=nonce,
            resume_from=_checkpoints_of(attempts),
            adopt_from=_checkpoints_of(self._attempts.of(job.adopts)) if job.adopts else (),
            disk_floor_bytes=self._room.floor_bytes,
        )
        try:
            # Left by a daemon that died between making the folder and recording the attempt.
            shutil.rmtree(folder.root, ignore_errors=True)
            folder.create(spec, plan, identity)
        except OSError as error:
            self._jobs.explain(job.id, f"waits: {disk_error(error, folder.root).report.line()}")
            return None
        with self._db.transaction():
            self._jobs.move(job.id, "starting", plan.reason, now)
            self._jobs.set_error(job.id, None)
            self._attempts.add(job.id, number, str(folder.root), nonce, now)
        process = start_worker(folder, nonce)
        self._attempts.set_process(
            job.id,
            number,
            pid=process.pid,
            started=process.started_ticks,
            boot_id=current_boot_id(),
        )
        return StartedWorker(nonce, process)


def _checkpoints_of(attempts: Sequence[AttemptRecord]) -> tuple[str, ...]:
    """Return the checkpoints of a job's attempts, newest first."""
    return tuple(
        str(checkpoint)
        for attempt in reversed(attempts)
        for checkpoint in RunFolder(Path(attempt.folder)).list_checkpoints()
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
