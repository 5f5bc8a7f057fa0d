"""Deletes what no run and no user needs any more: checkpoints, events of steps, deleted jobs.

Who calls it only notes what there may be to do, which is quick, never fails, and does no harm
where the transaction around it is undone. `work` looks at the disk and the database anew.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from slidepack.daemon.states import TERMINAL
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.retention import RetentionStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.daemon.supervisor.discarding import Discarder, aside_of, remains
from slidepack.daemon.supervisor.keeping import of_no_use, read_kept
from slidepack.daemon.supervisor.origins import Origins
from slidepack.daemon.supervisor.tier_leftovers import TierLeftovers, remove_tier_folders
from slidepack.engine.contract.runfolder import KEPT, RunFolder

_AGAIN_SECONDS: Final = 60.0
"""Until a folder that refused is tried again."""
_EVENTS_KEPT_SECONDS: Final = 600.0
"""After a job's end, for pages that were cut off and ask for what they missed."""
_ORIGINS_EVERY_SECONDS: Final = 60.0
_EVENTS_AT_ONCE: Final = 5_000
"""Deleted in one transaction: others wait to write meanwhile."""
_JOBS_AT_ONCE: Final = 20
"""Looked at in one round after a start."""


class Retention:
    """Decides what goes, and deletes it a little at a time."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        attempts: AttemptStore,
        runlog: RunLog,
        folder: Path,
        origins: Origins,
        state_kept_seconds: float = 30 * 86_400.0,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Bind the stores.

        Args:
            database: for transactions over several stores.
            jobs: the queue.
            attempts: the tries at its jobs.
            runlog: what workers reported.
            folder: of all jobs; nothing outside it is ever deleted.
            origins: what jobs go on from.
            state_kept_seconds: how long after a LoRA job's end its last checkpoint, with the
                optimizer's state, can be gone on from.
            monotonic: seconds on a clock that nobody sets.
            now: unix time in seconds.
        """
        self._db = database
        self._store = RetentionStore(database)
        self._jobs = jobs
        self._attempts = attempts
        self._runlog = runlog
        self._folder = folder
        self._discarder = Discarder(folder)
        self._origins = origins
        self._tiers = TierLeftovers(database, folder)
        self._state_kept_seconds = state_kept_seconds
        self._monotonic = monotonic
        self._now = now
        self._origins_due = float("-inf")
        self._lock = threading.Lock()
        self._due: dict[int, float] = {}
        self._events_due: dict[int, float] = {}
        self._leftovers_due = float("-inf")
        self._unseen_up_to: int | None = None

    def after_checkpoint(self, job_id: int) -> None:
        """Note that a job's worker has written a checkpoint; older ones may be of no use now."""
        self._note(self._due, job_id, 0)

    def after_end(self, job_id: int) -> None:
        """Note that a job was completed, has failed or was cancelled."""
        self._note(self._due, job_id, 0)
        self._note(self._events_due, job_id, _EVENTS_KEPT_SECONDS)

    def remove_job_folder(self, job_id: int) -> None:
        """Note for good that a job's folder is to be deleted, with the transaction around it.

        Where that is undone, the folder stays; once it is done, not even a restart forgets it.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL: the database could not be written.
        """
        self._store.add_leftover(job_id)
        self._leftovers_due = float("-inf")

    def work(self) -> None:
        """Delete a part of what there is to delete; for one thread, every few seconds.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL: the database could not be written; the
                next call goes on.
        """
        self._look_back()
        self._tiers.work()
        while (job_id := self._next(self._due)) is not None:
            done = False
            try:
                done = self._tidy(job_id)
            finally:
                if not done:
                    self._note(self._due, job_id, _AGAIN_SECONDS)
        self._drop_events()
        self._remove_leftovers()
        self._drop_origins()

    def _look_back(self) -> None:
        """Note a few jobs of before the start: what a daemon noted dies with it."""
        if self._unseen_up_to is None:
            self._unseen_up_to = self._store.newest_job_id()
        found = self._store.job_ids_up_to(self._unseen_up_to, _JOBS_AT_ONCE)
        for job_id in found:
            self._note(self._due, job_id, 0)
            self._note(self._events_due, job_id, 0)
        self._unseen_up_to = found[-1] - 1 if found else 0

    def _tidy(self, job_id: int) -> bool:
        """Delete the checkpoints of a job that are of no use; say whether that is done."""
        if not self._jobs.states_of([job_id]):
            return True
        job, attempts = self._jobs.get(job_id), self._attempts.of(job_id)
        drives_gone = not job.terminal or remove_tier_folders(self._folder / str(job_id))
        if job.terminal and job.adopts is not None:
            # That job's checkpoints may have waited for this end.
            self._note(self._due, job.adopts, 0)
        if (left_seconds := self._state_seconds(job)) > 0.0:
            self._note(self._due, job_id, left_seconds)
        try:
            aside = not self._of_no_use(job, attempts) or self._put_aside(job_id)
            left = [path for folder in _left(job, attempts) for path in remains(folder.checkpoints)]
        except OSError as error:
            return self._discarder.refused(self._folder / str(job_id), error)
        return self._discarder.delete(left) and aside and drives_gone

    def _put_aside(self, job_id: int) -> bool:
        with self._db.transaction():
            # Looked at again: a retry that goes on from this job may have come in between.
            return self._discarder.put_aside(
                self._of_no_use(self._jobs.get(job_id), self._attempts.of(job_id))
            )

    def _of_no_use(self, job: JobRecord, attempts: Sequence[AttemptRecord]) -> list[Path]:
        folders = [RunFolder(Path(attempt.folder)) for attempt in attempts]
        if not job.terminal:
            # Until the newest attempt has a checkpoint of its own, it needs those before it.
            if not folders or not folders[-1].list_checkpoints():
                return []
            found = of_no_use(read_kept(folders), newest=KEPT)
        elif self._store.is_adopted(job.id):
            return []
        elif job.state == "completed" and job.result and Path(job.result).is_dir():
            found = [checkpoint for folder in folders for checkpoint in folder.list_checkpoints()]
            if self._state_seconds(job) > 0.0:
                found = of_no_use(read_kept(folders), newest=0)
        else:
            found = of_no_use(read_kept(folders), newest=1)
        owners = {folder.checkpoints for folder in _left(job, attempts)}
        return [checkpoint for checkpoint in found if checkpoint.parent in owners]

    def _state_seconds(self, job: JobRecord) -> float:
        """Return how long a completed job's last checkpoint stays; 0 where it goes at once.

        An adapter's is small. That of a whole model is six times its result, and would keep the
        next job of the night waiting for room.
        """
        if job.state != "completed" or job.ended_at is None or not job.result:
            return 0.0
        if not (Path(job.result) / "adapter").is_dir():
            return 0.0
        return max(0.0, job.ended_at + self._state_kept_seconds - self._now())

    def _drop_origins(self) -> None:
        if self._monotonic() >= self._origins_due:
            self._origins_due = self._monotonic() + _ORIGINS_EVERY_SECONDS
            self._origins.work()

    def _drop_events(self) -> None:
        """Delete one slice of the events that only told of steps."""
        while (job_id := self._next(self._events_due)) is not None:
            if self._jobs.states_of([job_id]).get(job_id) not in TERMINAL:
                continue
            more = True
            try:
                dropped = self._runlog.drop_steps(job_id, _EVENTS_AT_ONCE)
                more = dropped == _EVENTS_AT_ONCE
            finally:
                if more:
                    self._note(self._events_due, job_id, 0)
            if dropped:
                return

    def _remove_leftovers(self) -> None:
        if self._monotonic() < self._leftovers_due:
            return
        for job_id in self._store.leftovers():
            folder = self._folder / str(job_id)
            # What is running on a checkpoint in it ends first.
            if self._store.is_adopted(job_id):
                continue
            # Only what is in the folder tells which drives there were.
            if (
                remove_tier_folders(folder)
                and self._discarder.put_aside([folder])
                and self._discarder.delete([aside_of(folder)])
            ):
                self._store.drop_leftover(job_id)
            else:
                self._leftovers_due = self._monotonic() + _AGAIN_SECONDS

    def _note(self, due: dict[int, float], job_id: int, seconds: float) -> None:
        at = self._monotonic() + seconds
        with self._lock:
            due[job_id] = min(at, due.get(job_id, at))

    def _next(self, due: dict[int, float]) -> int | None:
        """Take a job whose time has come."""
        now = self._monotonic()
        with self._lock:
            found = next((job_id for job_id, at in due.items() if at <= now), None)
            if found is not None:
                del due[found]
        return found


def _left(job: JobRecord, attempts: Sequence[AttemptRecord]) -> list[RunFolder]:
    """Return the run folders in which no worker writes, nor the next one begins."""
    ended = attempts if job.terminal else attempts[:-1]
    return [RunFolder(Path(attempt.folder)) for attempt in ended if attempt.state != "live"]
