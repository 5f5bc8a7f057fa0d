"""What users do to sweeps: queue all members at once, add some, cancel, delete."""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from slidepack.daemon.changes import Changes
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.queue import Queue
from slidepack.daemon.requests import JobRequest, freeze_job, job_spec, timing_of
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.store.judgements import Judgements
from slidepack.daemon.store.sweeps import SweepStore
from slidepack.daemon.store.timing import JobTiming
from slidepack.daemon.sweeps.lane import sweep_folder
from slidepack.daemon.sweeps.members import (
    Assignment,
    check_settings,
    expand,
    member_name,
    refused,
    settings_of,
)
from slidepack.daemon.sweeps.request import MAX_MEMBERS, MembersRequest, SweepRequest
from slidepack.daemon.sweeps.results import Best, Ranking, SweepResults, SweepSummary, SweepTable
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.data.rows import clip

__all__ = ["Queued", "Sweeps"]

_NAME_CHARACTERS = 80
"""Of a sweep: its members' names say their settings behind it."""


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """Members that were queued."""

    sweep_id: int
    name: str
    """Of the sweep."""
    jobs: tuple[int, ...]
    """The job of each member that was asked for, in that order; equal members share one."""
    merged: int
    """Members that were the same as another one."""


class Sweeps:
    """Commands of users, and what they read; each command is one transaction."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        store: SweepStore,
        queue: Queue,
        catalogue: Catalogue,
        paths: DataPaths,
        changes: Changes,
        tonight: Callable[[float], float],
    ) -> None:
        """Bind the stores.

        Args:
            database: for transactions over several stores.
            jobs: the queue's store.
            store: of sweeps.
            queue: cancels and deletes members.
            catalogue: models and datasets.
            paths: the data directory.
            changes: told about every change.
            tonight: when the next window opens, for a moment; both unix time in seconds.
        """
        self._db = database
        self._jobs = jobs
        self._store = store
        self._queue = queue
        self._catalogue = catalogue
        self._paths = paths
        self._changes = changes
        self._tonight = tonight
        self._results = SweepResults(store, jobs, paths, Judgements(database))

    def add(self, request: SweepRequest) -> Queued:
        """Queue every member of a sweep, or none.

        Raises:
            SlidepackError: RUN-SPEC-INVALID, the errors of `freeze_job`.
        """
        assignments = expand(request, request.members)
        name = self._name(request)
        specs = self._freeze(request, name, assignments)
        now = time.time()
        timing = self._timing(request, now)
        with self._db.transaction():
            sweep = self._store.add(name, request, now)
            queued = self._queue_members(sweep.id, name, specs, timing, now)
        self._changes.bump()
        return queued

    def add_members(self, sweep_id: int, request: MembersRequest) -> Queued:
        """Queue members of a sweep that is there, or none; the sweep's own settings hold for them.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-SPEC-INVALID, the errors of `freeze_job`.
        """
        sweep = self._store.get(sweep_id)
        plan = msgspec.structs.replace(sweep.request, grid={}, random={})
        assignments = expand(plan, request.members)
        specs = self._freeze(plan, sweep.name, assignments)
        now = time.time()
        timing = self._timing(plan, now)
        with self._db.transaction():
            self._store.get(sweep_id)
            queued = self._queue_members(sweep_id, sweep.name, specs, timing, now)
        self._changes.bump()
        return queued

    def list_sweeps(self) -> list[SweepSummary]:
        """Return all sweeps, newest first."""
        return self._results.list_sweeps(time.time())

    def show(self, sweep_id: int, by: Ranking = "selection") -> SweepTable:
        """Return a sweep with its members, ranked by their selection loss or, to report, by test.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-FOLDER-BROKEN.
        """
        return self._results.show(sweep_id, time.time(), by)

    def best(self, sweep_id: int) -> Best:
        """Return the best member.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-NO-RESULT where none is completed yet.
        """
        return self._results.best(sweep_id, time.time())

    def cancel(self, sweep_id: int) -> SweepTable:
        """End all members that have not ended.

        Raises:
            SlidepackError: RUN-NOT-FOUND.
        """
        with self._db.transaction():
            self._store.get(sweep_id)
            for job in self._jobs.of_sweep(sweep_id):
                if not job.terminal:
                    self._queue.cancel(job.id)
        return self.show(sweep_id)

    def remove(self, sweep_id: int) -> None:
        """Delete a sweep whose members have ended, with all their folders.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where one has not ended or is needed; then
                nothing is deleted.
        """
        with self._db.transaction():
            self._store.get(sweep_id)
            members = self._jobs.of_sweep(sweep_id)
            live = [job for job in members if not job.terminal]
            if live:
                raise SlidepackError(
                    "RUN-STATE",
                    f"Sweep {sweep_id} cannot be deleted.",
                    why=f"{len(live)} of its members have not ended; job {live[0].id} is "
                    f"{live[0].state}",
                    fix=f"`slidepack sweep cancel {sweep_id}` ends them.",
                )
            for job in members:
                self._queue.remove(job.id)
            self._store.remove(sweep_id)
        # Numbers are never used again, so what a full disk keeps here harms nobody.
        shutil.rmtree(sweep_folder(self._paths, sweep_id), ignore_errors=True)
        self._changes.bump()

    def _name(self, request: SweepRequest) -> str:
        rows = Path(self._catalogue.dataset(request.dataset).name).stem
        return clip(request.name.strip() or f"sweep on {rows}", _NAME_CHARACTERS)

    def _freeze(
        self, request: SweepRequest, name: str, assignments: Sequence[Assignment]
    ) -> list[JobSpec]:
        """Return the specifications of members, all over the same base and rows.

        Raises:
            SlidepackError: RUN-SPEC-INVALID, the errors of `freeze_job`.
        """
        settings = [
            check_settings(settings_of(request, one) | {"name": member_name(name, one)})
            for one in assignments
        ]
        if request.held_out is None and settings[0].selection_fraction <= 0:
            raise refused(
                "selection_fraction is 0, and members are chosen by their loss on held-out rows",
                "Hold some out, or name a held-out file.",
            )
        first = freeze_job(
            _job_request(request, settings=settings[0]), self._catalogue, self._paths
        )
        return [
            job_spec(one, name, first.base, first.dataset, first.eval.selection) for one in settings
        ]

    def _timing(self, request: SweepRequest, now: float) -> JobTiming:
        return timing_of(_job_request(request), self._tonight(now))

    def _queue_members(
        self, sweep_id: int, name: str, specs: Sequence[JobSpec], timing: JobTiming, now: float
    ) -> Queued:
        """Queue what is new among members; the caller's transaction holds all of them."""
        known = {_nameless(spec): job_id for job_id, spec in self._store.specs(sweep_id).items()}
        before = len(known)
        keys = [_nameless(spec) for spec in specs]
        if not known.keys() >= set(keys):
            # They share their model and their data.
            self._catalogue.require_inputs(specs[0])
        jobs = []
        for key, spec in zip(keys, specs, strict=True):
            if key not in known:
                known[key] = self._jobs.add(spec, now, timing, sweep_id=sweep_id).id
            jobs.append(known[key])
        if len(known) > MAX_MEMBERS:
            raise refused(
                f"it would have {len(known)} members", f"A sweep has at most {MAX_MEMBERS}."
            )
        merged = len(specs) - (len(known) - before)
        return Queued(sweep_id=sweep_id, name=name, jobs=tuple(jobs), merged=merged)


def _job_request(request: SweepRequest, settings: Any = None) -> JobRequest:
    fields = {} if settings is None else msgspec.structs.asdict(settings)
    return JobRequest(
        model=request.model,
        dataset=request.dataset,
        held_out=request.held_out,
        start=request.start,
        not_before=request.not_before,
        deadline=request.deadline,
        priority=request.priority,
        **fields,
    )


def _nameless(spec: JobSpec) -> JobSpec:
    return msgspec.structs.replace(spec, name="-")
