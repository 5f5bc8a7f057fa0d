"""The supervisor: follows workers, settles what ended, starts what is next. One tick at a time."""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

from slidepack.daemon.changes import Changes
from slidepack.daemon.oom import OomKills, read_oom_kills
from slidepack.daemon.states import JobState
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.daemon.supervisor.choosing import Gate
from slidepack.daemon.supervisor.following import Following
from slidepack.daemon.supervisor.ingest import ingest_events
from slidepack.daemon.supervisor.launching import StartedWorker
from slidepack.daemon.supervisor.next_job import NextJob
from slidepack.daemon.supervisor.outcomes import Outcomes
from slidepack.daemon.supervisor.pack_follow import PackFollower
from slidepack.daemon.supervisor.patience import Patience
from slidepack.daemon.supervisor.retention import Retention
from slidepack.daemon.supervisor.settling import Settling
from slidepack.daemon.supervisor.worker_process import WorkerProcess, find_worker
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import (
    AnyEvent,
    Checkpointed,
    PhaseChanged,
    Started,
)

logger = logging.getLogger(__name__)

_SETTLE_SECONDS = 10.0
"""Beyond a worker's time to leave, for what it left to be recorded."""


class Supervisor:
    """Owns the workers. `tick` is the only place that changes a live job's state."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        attempts: AttemptStore,
        runlog: RunLog,
        packs: PackFollower,
        plan: Following,
        next_job: NextJob,
        gate: Gate,
        outcomes: Outcomes,
        retention: Retention,
        changes: Changes,
        stop_seconds: float,
    ) -> None:
        """Bind the stores.

        Args:
            database: for transactions over several stores.
            jobs: the queue.
            attempts: the tries at its jobs.
            runlog: where events go.
            packs: follows the workers that run many jobs.
            plan: told of everything that changes what is best.
            next_job: starts the next job.
            gate: says when a running job must give the GPU back.
            outcomes: told what became of a job whose worker has ended.
            retention: deletes the checkpoints that are of no use any more.
            changes: told about every change.
            stop_seconds: how long a worker may take to leave before it is killed.
        """
        self._db = database
        self._jobs = jobs
        self._attempts = attempts
        self._runlog = runlog
        self._packs = packs
        self._plan = plan
        self._next_job = next_job
        self._gate = gate
        self._retention = retention
        self._changes = changes
        self._stop_seconds = stop_seconds
        self._patience = Patience(stop_seconds)
        self._settling = Settling(
            database=database,
            jobs=jobs,
            attempts=attempts,
            runlog=runlog,
            packs=packs,
            outcomes=outcomes,
            retention=retention,
            patience=self._patience,
        )
        self._workers: dict[str, WorkerProcess] = {}
        self._oom_kills: dict[str, OomKills] = {}
        """What the kernel had counted when each worker began, or was found again."""
        self._tick_lock = threading.Lock()
        self._stopping = False

    def tick(self, now: float) -> None:
        """Do everything that is due.

        Args:
            now: unix time in seconds.
        """
        with self._tick_lock:
            for pack in self._packs.live():
                while self._packs.ingest(pack.id, now):
                    self._changes.bump_events()
            # The last first: lanes that go back to the queue's head keep their order there.
            for attempt in reversed(self._attempts.live()):
                self._follow(attempt, now)
            self._end_packs(now)
            if not self._stopping:
                self._start_next(now)
                self._move(now)

    @property
    def longest_stop_seconds(self) -> float:
        """How long `shut_down` takes at most."""
        return self._stop_seconds + _SETTLE_SECONDS

    def running(self) -> list[WorkerProcess]:
        """Return the workers that this daemon knows of."""
        return list(self._workers.values())

    def shut_down(self, now: Callable[[], float] = time.time) -> None:
        """Ask every worker to checkpoint and leave, and wait until they have.

        Their jobs go back to the queue; the next daemon goes on with them.
        """
        # A tick that is starting a worker ends first, so that this worker is asked too.
        with self._tick_lock:
            self._stopping = True
            for worker in self._workers.values():
                worker.terminate()
        deadline = time.monotonic() + self.longest_stop_seconds
        while time.monotonic() < deadline:
            try:
                for job in self._jobs.live():
                    if job.wanted is None:
                        self._jobs.want(job.id, "yield", now(), "the daemon stops")
                self.tick(now())
                # The lanes of a pack have left before its worker has.
                if not self._attempts.live() and not self._packs.live():
                    return
            except (SlidepackError, OSError, sqlite3.Error) as error:
                # A full disk keeps the outcome from being recorded; the next daemon settles it.
                logger.warning("While stopping: %s", error)
            time.sleep(0.05)

    def _follow(self, attempt: AttemptRecord, now: float) -> None:
        worker = self._worker(attempt)
        # Whether it runs is asked first: what it wrote before it ended is then surely read.
        running = worker is not None and worker.is_running()
        self._ingest(attempt, now)
        if worker is not None and running and not self._has_left(attempt):
            self._obey(self._asked(attempt.job_id, now), worker, attempt, now)
        else:
            self._settle(attempt, worker, now)

    def _has_left(self, attempt: AttemptRecord) -> bool:
        """Return whether a lane has ended while its pack goes on."""
        ended = attempt.pack_id is not None
        return ended and self._runlog.ending(attempt.job_id, attempt.number) is not None

    def _end_packs(self, now: float) -> None:
        """Let go of the packs whose worker is gone and whose lanes are settled."""
        for pack in self._packs.live():
            if self._packs.lanes(pack.id):
                continue
            worker = self._workers.get(pack.nonce) or find_worker(pack.nonce)
            if worker is not None and worker.is_running():
                # Known or not: it is on its way out, and its device is not free before.
                self._workers.setdefault(pack.nonce, worker)
                continue
            self._workers.pop(pack.nonce, None)
            self._oom_kills.pop(pack.nonce, None)
            self._packs.end(pack, now)
            self._happened()

    def _happened(self) -> None:
        self._changes.bump()
        self._plan.changed()

    def _worker(self, attempt: AttemptRecord) -> WorkerProcess | None:
        if attempt.nonce not in self._workers:
            found = find_worker(
                attempt.nonce,
                pid=attempt.pid,
                started_ticks=attempt.process_started,
                boot_id=attempt.boot_id,
            )
            if found is None:
                return None
            logger.info("Job %d goes on in process %d.", attempt.job_id, found.pid)
            self._enlist(attempt.nonce, found)
            if attempt.pack_id is not None:
                self._packs.found_again(attempt.pack_id)
        return self._workers[attempt.nonce]

    def _enlist(self, nonce: str, worker: WorkerProcess) -> None:
        self._workers[nonce] = worker
        self._oom_kills[nonce] = read_oom_kills()

    def _ingest(self, attempt: AttemptRecord, now: float) -> None:
        current = attempt
        while self._ingest_slice(current, now):
            self._changes.bump_events()
            current = self._attempts.of(attempt.job_id)[attempt.number - 1]

    def _ingest_slice(self, attempt: AttemptRecord, now: float) -> bool:
        # One transaction: a daemon that dies here has stored both the events and what they mean.
        with self._db.transaction():
            events = ingest_events(attempt, self._runlog)
            for event in events:
                self._advance(attempt.job_id, event, now)
        return bool(events)

    def _advance(self, job_id: int, event: AnyEvent, now: float) -> None:
        """Move a live job along with what its worker reports."""
        target: JobState | None = None
        if isinstance(event, Checkpointed):
            self._retention.after_checkpoint(job_id)
        elif isinstance(event, Started):
            target = "running"
        elif isinstance(event, PhaseChanged) and event.phase == "saving":
            target = "finishing"
        state = self._jobs.get(job_id).state
        # A job that is pausing or yielding keeps saying so until its worker has left.
        if (target == "running" and state == "starting") or (
            target == "finishing" and state == "running"
        ):
            assert target is not None
            self._jobs.move(job_id, target, f"its worker is {target}", now)

    def _asked(self, job_id: int, now: float) -> JobRecord:
        """Return a live job, asked to yield where the gate says so and nothing else is wanted."""
        job = self._jobs.get(job_id)
        why = "" if job.wanted else self._gate.why_leave(job, now)
        if not why:
            return job
        logger.info("Job %d gives way: %s.", job_id, why)
        self._jobs.want(job_id, "yield", now, why)
        return self._jobs.get(job_id)

    def _obey(
        self, job: JobRecord, worker: WorkerProcess, attempt: AttemptRecord, now: float
    ) -> None:
        if job.wanted is None:
            return
        target: JobState | None = {"pause": "pausing", "yield": "yielding"}.get(job.wanted)  # type: ignore[assignment]  # the literals are states
        if target is not None and job.state in ("starting", "running"):
            why = f": {job.wanted_why}" if job.wanted_why else ""
            self._jobs.move(job.id, target, f"its worker was asked to {job.wanted}{why}", now)
            self._happened()
        folder = Path(attempt.folder)
        if attempt.pack_id is None or self._all_are_to_leave(attempt.pack_id):
            worker.terminate()
        elif worker.leave_seconds() is None:
            self._packs.ask_to_leave(attempt, job.wanted_why or f"asked to {job.wanted}")
        # By this process's own clock: a suspended machine or a set clock must not shorten the
        # time that a worker has.
        waited = self._patience.waited(
            folder, worker.leave_seconds(), self._packs.is_ready(attempt)
        )
        # A lane's worker has others to think of.
        unwanted = job.wanted == "cancel" and attempt.pack_id is None
        if self._patience.is_over(folder, waited, unwanted=unwanted):
            logger.warning(
                "Job %d: its worker %d did not leave within %g s and is killed.",
                job.id,
                worker.pid,
                round(waited),
            )
            worker.kill()

    def _all_are_to_leave(self, pack_id: int) -> bool:
        """Return whether nobody in a pack goes on, so that its worker can leave as a whole."""
        return all(self._jobs.get(a.job_id).wanted for a in self._packs.lanes(pack_id))

    def _settle(self, attempt: AttemptRecord, worker: WorkerProcess | None, now: float) -> None:
        self._settling.settle(attempt, worker, self._oom_kills.get(attempt.nonce), now)
        if attempt.pack_id is None:
            self._oom_kills.pop(attempt.nonce, None)
            self._workers.pop(attempt.nonce, None)
        self._happened()

    def _move(self, now: float) -> None:
        """Ask the jobs to leave that go on elsewhere, or later, by the plan."""
        for move in self._plan.moves(now):
            with self._db.transaction():
                job = self._jobs.get(move.job_id)
                if job.state == "running" and job.wanted is None:
                    logger.info("Job %d moves: %s.", job.id, move.why)
                    self._jobs.want(job.id, "yield", now, move.why)

    def _start_next(self, now: float) -> None:
        woken = self._next_job.wake_paused(now)
        leaving = {
            nonce for nonce, worker in self._workers.items() if worker.leave_seconds() is not None
        }
        started = self._next_job.start(now, leaving)
        for one in started:
            if isinstance(one, StartedWorker):
                self._enlist(one.nonce, one.process)
        if woken or started:
            self._happened()
