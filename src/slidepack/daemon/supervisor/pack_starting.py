"""Starts packs of lanes, and lets lanes join them."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.hardware import DeviceNow, Waiting
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.planner.from_engine import model_key
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.packs import PackRecord
from slidepack.daemon.supervisor.launching import (
    Launcher,
    MadeAttempt,
    StartedWorker,
    Waits,
    refused,
)
from slidepack.daemon.supervisor.model_check import ModelCheck
from slidepack.daemon.supervisor.pack_control import send
from slidepack.daemon.supervisor.run_folders import RunFolders, new_nonce
from slidepack.daemon.supervisor.run_plans import RunPlans
from slidepack.engine.contract.control import ControlCommand
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.pack import LaneRef, PackFolder, PackSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunIdentity
from slidepack.engine.memory_pack import lane_disk_bytes, why_no_lane_fits
from slidepack.engine.shape import read_shape

__all__ = ["Joined", "PackStarter", "tell_to_join"]

_NAMED: Final = 5
"""Jobs of a pack that are named to the user; the others are counted."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A job that has become a lane of a running pack."""

    job_id: int


class PackStarter:
    """Starts workers that train many jobs."""

    def __init__(
        self,
        launcher: Launcher,
        *,
        models: ModelCheck,
        plans: RunPlans,
        folders: RunFolders,
        paths: DataPaths,
        room: DiskRoom,
        exact: bool,
    ) -> None:
        """Bind what a start needs.

        Args:
            launcher: records attempts and starts workers.
            models: says whether a job's model is what it was.
            plans: how runs use the devices.
            folders: makes run folders.
            paths: the data directory.
            room: the disk.
            exact: rows are filled up, so that no lane depends on the others.
        """
        self._launcher = launcher
        self._models = models
        self._plans = plans
        self._folders = folders
        self._paths = paths
        self._room = room
        self._exact = exact

    def start(
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
                return self.start(lanes[:1], later, device, now, alone=alone)
            if shortage:
                return Waits(f"waits for room: {shortage}", soon=True)
            return self._launch_pack(lanes[:count], plan, device, now, alone=alone)
        except SlidepackError as error:
            self._launcher.fail(first, error, now)
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
            self._launcher.fail(job, error, now)
            return None

    def _why_no_seat(self, spec: JobSpec, pack: PackRecord) -> str:
        live = self._launcher.attempts.live_in_pack(pack.id)
        shape = read_shape(Path(spec.base.path))
        specs = [*(self._launcher.jobs.spec(attempt.job_id) for attempt in live), spec]
        plan = PackFolder(Path(pack.folder)).read_plan()
        why = why_no_lane_fits(plan, specs, shape, pack.machine)
        if why:
            return f"waits for a seat: {why}"
        shortage = self._room.shortage(lane_disk_bytes(spec, shape))
        return f"waits for room: {shortage}" if shortage else ""

    def _launch_pack(
        self,
        lanes: Sequence[tuple[JobRecord, JobSpec]],
        plan: RunPlan,
        device: DeviceNow,
        now: float,
        *,
        alone: bool,
    ) -> StartedWorker | Waits | None:
        nonce, (first, spec) = new_nonce(), lanes[0]
        root = PackFolder(self._paths.pack(nonce))
        identity = RunIdentity(job_id=f"pack {nonce[:8]}", attempt=1, nonce=nonce)
        try:
            made = self._make(lanes, plan, nonce, root, now)
            if not made:
                return None
            refs = tuple(_lane(attempt) for attempt in made)
            root.create(PackSpec(base=spec.base, lanes=refs, exact=self._exact), plan, identity)
        except OSError as error:
            return refused(error, self._paths.packs)
        with self._launcher.database.transaction():
            gone = [one.job.id for one in made if not self._launcher.is_queued(one.job.id)]
            if gone:
                # Nobody else is to suffer for it: the others begin without it at the next look.
                shutil.rmtree(root.root, ignore_errors=True)
                why = f"waits: {_named(gone)} left the queue as they were about to begin together"
                return None if first.id in gone else Waits(why, soon=True)
            pack = self._launcher.packs.add(
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
                self._launcher.begin(attempt, nonce, plan, why, now, pack_id=pack.id)
        return self._launcher.start(made, root, nonce, now, pack=pack)

    def _make(
        self,
        lanes: Sequence[tuple[JobRecord, JobSpec]],
        plan: RunPlan,
        nonce: str,
        root: PackFolder,
        now: float,
    ) -> list[MadeAttempt]:
        """Make the lanes' folders; a job whose own cannot be made fails, and the others begin."""
        made = []
        for job, spec in lanes:
            try:
                folder = self._folders.make(job, spec, plan, nonce, root.log)
                made.append(MadeAttempt(job, *folder))
            except SlidepackError as error:
                self._launcher.fail(job, error, now)
        return made

    def _launch_lane(
        self, job: JobRecord, spec: JobSpec, pack: PackRecord, now: float
    ) -> Joined | Waits:
        root = PackFolder(Path(pack.folder))
        plan = root.read_plan()
        try:
            number, folder = self._folders.make(job, spec, plan, pack.nonce, root.log)
        except OSError as error:
            return refused(error, self._paths.jobs)
        there = self._launcher.attempts.live_in_pack(pack.id)
        with self._launcher.database.transaction():
            attempt = MadeAttempt(job, number, folder)
            why = f"Joins {_named([a.job_id for a in there])} on {pack.device}."
            self._launcher.begin(attempt, pack.nonce, plan, why, now, pack_id=pack.id)
            self._launcher.attempts.set_process(
                job.id,
                number,
                pid=there[0].pid or 0,
                started=there[0].process_started,
                boot_id=there[0].boot_id,
            )
        try:
            tell_to_join(pack, job, number, folder.root)
        except OSError as error:
            self._launcher.take_back(
                [attempt], f"waits: the pack could not be told ({error})", now, None
            )
            return refused(error, self._paths.packs)
        return Joined(job.id)


def _lane(attempt: MadeAttempt) -> LaneRef:
    return LaneRef(
        lane=str(attempt.job.id),
        folder=str(attempt.folder.root),
        priority=attempt.job.priority,
    )


def tell_to_join(pack: PackRecord, job: JobRecord, attempt: int, folder: Path) -> None:
    """Tell a pack of a lane that was recorded as its own.

    Args:
        pack: that runs.
        job: that becomes a lane.
        attempt: its number.
        folder: the lane's run folder.

    Raises:
        OSError: the disk refused.
    """
    command = ControlCommand(
        command_id=f"join-{job.id}-{attempt}",
        kind="join",
        lane=str(job.id),
        folder=str(folder),
        priority=job.priority,
    )
    send(PackFolder(Path(pack.folder)), command)


def _together(plan: RunPlan, made: Sequence[MadeAttempt], job_id: int) -> str:
    others = [attempt.job.id for attempt in made if attempt.job.id != job_id]
    return f"Trains together with {_named(others)}. {plan.reason}" if others else plan.reason


def _named(job_ids: Sequence[int]) -> str:
    """Return jobs in words."""
    named = ", ".join(map(str, job_ids[:_NAMED]))
    more = len(job_ids) - _NAMED
    others = f" and {more} {'other' if more == 1 else 'others'}" if more > 0 else ""
    return f"{'job' if len(job_ids) == 1 else 'jobs'} {named}{others}"
