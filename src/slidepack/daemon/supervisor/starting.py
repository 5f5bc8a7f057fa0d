"""Starts workers: one for a run of its own, one for a pack of lanes; and lets lanes join packs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.hardware import DeviceNow, Waiting
from slidepack.daemon.paths import DataPaths, disk_error
from slidepack.daemon.planner.from_engine import model_key
from slidepack.daemon.states import JobState
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.packs import PackRecord, PackStore
from slidepack.daemon.supervisor.model_check import ModelCheck
from slidepack.daemon.supervisor.outcomes import Outcomes
from slidepack.daemon.supervisor.pack_control import send
from slidepack.daemon.supervisor.run_folders import RunFolders, new_nonce
from slidepack.daemon.supervisor.run_plans import RunPlans
from slidepack.daemon.supervisor.worker_process import (
    WorkerProcess,
    current_boot_id,
    start_worker,
)
from slidepack.engine.contract.control import ControlCommand
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.pack import LaneRef, PackFolder, PackSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder, RunIdentity
from slidepack.engine.memory_pack import lane_disk_bytes, why_no_lane_fits
from slidepack.engine.shape import read_shape


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """A worker, the nonce it is known by, and the jobs that it runs."""

    nonce: str
    process: WorkerProcess
    job_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Joined:
    """A job that has become a lane of a running pack."""

    job_id: int


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a job was not started."""

    reason: str
    soon: bool
    """Whether what it waits for may come any moment, so that nothing overtakes it yet."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    job: JobRecord
    number: int
    folder: RunFolder


class Starter:
    """Starts attempts on devices."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        attempts: AttemptStore,
        packs: PackStore,
        catalogue: Catalogue,
        plans: RunPlans,
        folders: RunFolders,
        paths: DataPaths,
        room: DiskRoom,
        outcomes: Outcomes,
        exact: bool,
    ) -> None:
        """Bind what a start needs.

        Args:
            database: for transactions over several stores.
            jobs: the queue.
            attempts: the tries at its jobs.
            packs: the workers that run many jobs.
            catalogue: models and datasets.
            plans: how runs use the devices.
            folders: makes run folders.
            paths: the data directory.
            room: the disk.
            outcomes: told of a job that fails before it starts.
            exact: rows of packs are filled up, so that no lane depends on the others.
        """
        self._db = database
        self._jobs = jobs
        self._attempts = attempts
        self._packs = packs
        self._plans = plans
        self._folders = folders
        self._paths = paths
        self._room = room
        self._models = ModelCheck(catalogue)
        self._outcomes = outcomes
        self._exact = exact

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
            plan = self._plans.of_run(job, spec, device)
            if isinstance(plan, Waiting):
                return Waits(plan.reason, soon=True)
            shortage = self._room.shortage(plan.predicted_disk_bytes)
            if shortage:
                return Waits(f"waits for room: {shortage}", soon=True)
            return self._launch_run(job, spec, plan, now)
        except SlidepackError as error:
            self._fail(job, error, now)
            return None

    def pack(
        self,
        lanes: Sequence[tuple[JobRecord, JobSpec]],
        later: Sequence[JobSpec],
        device: DeviceNow,
        now: float,
        *,
        alone: bool,
    ) -> StartedWorker | Waits | None:
        """Start a pack with as many of the lanes as fit, the first among them at least.

        Args:
            lanes: jobs that can begin, of one base, in the order in which they should.
            later: of jobs that may join.
            device: that is free.
            now: unix time in seconds.
            alone: nobody may join.

        Returns:
            The worker, or why the first one waits; None where that one failed, or is gone.
        """
        first, spec = lanes[0]
        try:
            waits = self._models.why_wait(spec)
            if waits:
                return Waits(waits, soon=False)
            planned = self._plans.of_pack(lanes, later, device)
            if isinstance(planned, Waiting):
                return Waits(planned.reason, soon=True)
            plan, count = planned
            shortage = self._room.shortage(plan.predicted_disk_bytes)
            if shortage and count > 1:
                return self.pack(lanes[:1], later, device, now, alone=alone)
            if shortage:
                return Waits(f"waits for room: {shortage}", soon=True)
            return self._launch_pack(lanes[:count], plan, device, now, alone=alone)
        except SlidepackError as error:
            self._fail(first, error, now)
            return None

    def join(
        self, job: JobRecord, spec: JobSpec, pack: PackRecord, now: float
    ) -> Joined | Waits | None:
        """Let a job become a lane of a running pack, or say why it waits; None where it failed."""
        try:
            waits = self._models.why_wait(spec) or self._why_no_seat(spec, pack)
            if waits:
                return Waits(waits, soon=False)
            return self._launch_lane(job, spec, pack, now)
        except SlidepackError as error:
            self._fail(job, error, now)
            return None

    def expect_again(self, pack: PackRecord, attempt: AttemptRecord) -> None:
        """Tell a pack once more of a lane that a daemon recorded before it died.

        Raises:
            OSError: the disk refused.
        """
        _tell(pack, attempt.job_id, attempt.number, Path(attempt.folder))

    def shortage(self, job: JobRecord) -> str:
        """Return why a job that ran before has no room on the disk now; empty where it has.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        attempts = self._attempts.of(job.id)
        if not attempts:
            return ""
        folder = RunFolder(Path(attempts[-1].folder))
        if attempts[-1].pack_id is None:
            return self._room.shortage(folder.read_plan().predicted_disk_bytes)
        spec = folder.read_spec()
        return self._room.shortage(lane_disk_bytes(spec, read_shape(Path(spec.base.path))))

    def _why_no_seat(self, spec: JobSpec, pack: PackRecord) -> str:
        live = [a for a in self._attempts.of_pack(pack.id) if a.state == "live"]
        shape = read_shape(Path(spec.base.path))
        specs = [*(self._jobs.spec(attempt.job_id) for attempt in live), spec]
        plan = PackFolder(Path(pack.folder)).read_plan()
        why = why_no_lane_fits(plan, specs, shape, pack.machine)
        if why:
            return f"waits for a seat: {why}"
        shortage = self._room.shortage(lane_disk_bytes(spec, shape))
        return f"waits for room: {shortage}" if shortage else ""

    def _launch_run(
        self, job: JobRecord, spec: JobSpec, plan: RunPlan, now: float
    ) -> StartedWorker | Waits:
        nonce = new_nonce()
        try:
            number, folder = self._folders.make(job, spec, plan, nonce)
        except OSError as error:
            return _refused(error, self._paths.jobs)
        attempt = _Attempt(job, number, folder)
        with self._db.transaction():
            self._begin(attempt, nonce, plan, plan.reason, now, pack_id=None)
        return self._start([attempt], folder, nonce, now, pack=None)

    def _launch_pack(
        self,
        lanes: Sequence[tuple[JobRecord, JobSpec]],
        plan: RunPlan,
        device: DeviceNow,
        now: float,
        *,
        alone: bool,
    ) -> StartedWorker | Waits:
        nonce, spec = new_nonce(), lanes[0][1]
        root = PackFolder(self._paths.pack(nonce))
        identity = RunIdentity(job_id=f"pack {nonce[:8]}", attempt=1, nonce=nonce)
        try:
            made = [
                _Attempt(job, *self._folders.make(job, spec, plan, nonce, root.log))
                for job, spec in lanes
            ]
            refs = tuple(_lane(attempt) for attempt in made)
            root.create(PackSpec(base=spec.base, lanes=refs, exact=self._exact), plan, identity)
        except OSError as error:
            return _refused(error, self._paths.packs)
        with self._db.transaction():
            pack = self._packs.add(
                device=device.key,
                model=model_key(spec, device.key),
                folder=root.root,
                nonce=nonce,
                machine=device.machine,
                alone=alone,
                now=now,
            )
            for attempt in made:
                why = _together(plan, made, attempt.job.id)
                self._begin(attempt, nonce, plan, why, now, pack_id=pack.id)
        return self._start(made, root, nonce, now, pack=pack)

    def _launch_lane(
        self, job: JobRecord, spec: JobSpec, pack: PackRecord, now: float
    ) -> Joined | Waits:
        root = PackFolder(Path(pack.folder))
        plan = root.read_plan()
        try:
            number, folder = self._folders.make(job, spec, plan, pack.nonce, root.log)
        except OSError as error:
            return _refused(error, self._paths.jobs)
        there = [a for a in self._attempts.of_pack(pack.id) if a.state == "live"]
        named = ", ".join(str(attempt.job_id) for attempt in there[:5])
        more = f" and {len(there) - 5} others" if len(there) > 5 else ""
        jobs = "job" if len(there) == 1 else "jobs"
        with self._db.transaction():
            attempt = _Attempt(job, number, folder)
            why = f"joins {jobs} {named}{more} on {pack.device}"
            self._begin(attempt, pack.nonce, plan, why, now, pack_id=pack.id)
            self._attempts.set_process(
                job.id,
                number,
                pid=there[0].pid or 0,
                started=there[0].process_started,
                boot_id=there[0].boot_id,
            )
        try:
            _tell(pack, job.id, number, folder.root)
        except OSError as error:
            self._take_back([attempt], f"waits: the pack could not be told ({error})", now, None)
            return _refused(error, self._paths.packs)
        return Joined(job.id)

    def _begin(
        self,
        attempt: _Attempt,
        nonce: str,
        plan: RunPlan,
        why: str,
        now: float,
        *,
        pack_id: int | None,
    ) -> None:
        job_id = attempt.job.id
        self._jobs.move(job_id, "starting", why, now)
        self._jobs.set_error(job_id, None)
        self._attempts.add(
            job_id,
            attempt.number,
            str(attempt.folder.root),
            nonce,
            now,
            device=plan.device,
            pack_id=pack_id,
        )

    def _start(
        self,
        made: Sequence[_Attempt],
        folder: RunFolder | PackFolder,
        nonce: str,
        now: float,
        *,
        pack: PackRecord | None,
    ) -> StartedWorker | Waits:
        try:
            process = start_worker(folder, nonce)
        except OSError as error:
            # No memory for a process, or no room for its log: that passes, and was no attempt.
            reason = f"waits: its worker could not be started ({error})"
            self._take_back(made, reason, now, pack)
            return Waits(reason, soon=True)
        for attempt in made:
            self._attempts.set_process(
                attempt.job.id,
                attempt.number,
                pid=process.pid,
                started=process.started_ticks,
                boot_id=current_boot_id(),
            )
        return StartedWorker(nonce, process, tuple(attempt.job.id for attempt in made))

    def _take_back(
        self, made: Sequence[_Attempt], reason: str, now: float, pack: PackRecord | None
    ) -> None:
        with self._db.transaction():
            for attempt in made:
                job_id = attempt.job.id
                self._attempts.remove(job_id, attempt.number)
                wanted = self._jobs.get(job_id).wanted
                if wanted in ("cancel", "pause"):
                    asked: JobState = "cancelled" if wanted == "cancel" else "paused"
                    self._jobs.move(job_id, asked, asked, now)
                else:
                    self._jobs.move(job_id, "queued", reason, now)
            if pack is not None:
                self._packs.remove(pack.id)

    def _fail(self, job: JobRecord, error: SlidepackError, now: float) -> None:
        """End a job that can never start.

        Raises:
            SlidepackError: the database cannot be written; the job waits, and is tried again.
        """
        if error.report.code.startswith("DISK-"):
            raise error
        with self._db.transaction():
            # A user may have cancelled or paused it meanwhile.
            if self._jobs.get(job.id).state == "queued":
                self._jobs.set_error(job.id, error.report)
                self._jobs.move(job.id, "failed", error.report.line(), now)
                self._outcomes.settled(job, "failed", error.report.line(), error.report, now)


def _lane(attempt: _Attempt) -> LaneRef:
    return LaneRef(
        lane=str(attempt.job.id),
        folder=str(attempt.folder.root),
        priority=attempt.job.priority,
    )


def _tell(pack: PackRecord, job_id: int, number: int, folder: Path) -> None:
    command = ControlCommand(
        command_id=f"join-{job_id}-{number}", kind="join", lane=str(job_id), folder=str(folder)
    )
    send(PackFolder(Path(pack.folder)), command)


def _together(plan: RunPlan, made: Sequence[_Attempt], job_id: int) -> str:
    others = [str(attempt.job.id) for attempt in made if attempt.job.id != job_id]
    if not others:
        return plan.reason
    named = ", ".join(others[:5]) + (f" and {len(others) - 5} others" if len(others) > 5 else "")
    return f"Trains together with {'job' if len(others) == 1 else 'jobs'} {named}. {plan.reason}"


def _refused(error: OSError, path: Path) -> Waits:
    return Waits(f"waits: {disk_error(error, path).report.line()}", soon=True)
