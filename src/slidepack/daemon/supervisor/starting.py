"""Starts the job at the head of the queue, or says why it waits."""

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from slidepack.daemon.hardware import HardwareMonitor, Waiting, machine_now
from slidepack.daemon.imports import unchanged
from slidepack.daemon.paths import DataPaths, disk_error
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.catalogue import Catalogue, ModelRecord
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.supervisor.worker_process import WorkerProcess, start_worker
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
        database: Database,
        jobs: JobStore,
        catalogue: Catalogue,
        hardware: HardwareMonitor,
        paths: DataPaths,
        settings: Settings,
    ) -> None:
        """Bind what a start needs."""
        self._db = database
        self._jobs = jobs
        self._catalogue = catalogue
        self._hardware = hardware
        self._paths = paths
        self._device = settings.device

    def start(self, job: JobRecord, now: float) -> StartedWorker | None:
        """Start a job, or return None where it waits (it says why) or failed for good."""
        spec = self._jobs.spec(job.id)
        try:
            self._check_model(spec)
            plan = self._plan(job, spec)
            if plan is None:
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
            return None

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
            if content_hash(Path(model.path)) != model.content_hash:
                return False
            self._catalogue.set_stamp(model.id, quick_stamp(Path(model.path)))
        except OSError:
            return False
        return True

    def _plan(self, job: JobRecord, spec: JobSpec) -> RunPlan | None:
        """Return a plan for what is free now, or None where waiting can help."""
        report = self._hardware.report()
        machine = machine_now(report, whole=False, device=self._device)
        if isinstance(machine, Waiting):
            self._jobs.explain(job.id, machine.reason)
            return None
        earlier = self._earlier_plan(job.id)
        if earlier is not None:
            reason = why_not_again(earlier, machine)
            if reason:
                self._jobs.explain(job.id, reason)
            return None if reason else earlier
        shape = read_shape(Path(spec.base.path))
        try:
            return plan_run(spec, shape, machine)
        except SlidepackError as error:
            everything = machine_now(report, whole=True, device=self._device)
            assert not isinstance(everything, Waiting)
            # Where not even the whole machine would do, this raises and the job fails.
            plan_run(spec, shape, everything)
            self._jobs.explain(job.id, f"waits for memory: {error.report.why}")
            return None

    def _earlier_plan(self, job_id: int) -> RunPlan | None:
        """Return the plan of the newest attempt that left a checkpoint, or None.

        A resumed run keeps device, precision, threads and micro-batches, because its results
        depend on them.
        """
        for attempt in reversed(self._jobs.attempts(job_id)):
            folder = RunFolder(Path(attempt.folder))
            if folder.list_checkpoints():
                return folder.read_plan()
        return None

    def _launch(
        self, job: JobRecord, spec: JobSpec, plan: RunPlan, now: float
    ) -> StartedWorker | None:
        attempts = self._jobs.attempts(job.id)
        number = len(attempts) + 1
        folder = RunFolder(self._paths.attempt(job.id, number))
        nonce = secrets.token_hex(16)
        resume_from = tuple(
            str(checkpoint)
            for attempt in reversed(attempts)
            for checkpoint in RunFolder(Path(attempt.folder)).list_checkpoints()
        )
        identity = RunIdentity(
            job_id=str(job.id), attempt=number, nonce=nonce, resume_from=resume_from
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
            self._jobs.add_attempt(job.id, number, str(folder.root), nonce, now)
        process = start_worker(folder, nonce)
        self._jobs.set_pid(job.id, number, process.pid)
        return StartedWorker(nonce, process)


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
