"""Jobs: the queue and its state machine."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from slidepack.daemon.states import LIVE, TERMINAL, TRANSITIONS, JobState
from slidepack.daemon.store.database import Database, Row
from slidepack.daemon.store.queue_order import place_jobs
from slidepack.daemon.store.queued_jobs import QueuedJobs
from slidepack.daemon.store.timing import JobTiming
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import JobSpec


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One job as the API shows it."""

    id: int
    name: str
    state: JobState
    reason: str
    """Why it is in this state, or what it waits for."""
    model_id: str
    dataset_id: int
    step: int
    total_steps: int
    phase: str
    loss: float | None
    eta_seconds: float | None
    tokens_per_second: float | None
    result: str | None
    """Folder of the finished result."""
    error: ErrorReport | None
    wanted: str | None
    """`pause`, `cancel` or `yield` where that is asked for and not done yet."""
    wanted_at: float | None
    wanted_why: str = ""
    """Why a yield is asked for."""
    priority: int = 0
    not_before: float | None = None
    deadline: float | None = None
    promised: bool = False
    """Whether a plan has shown once that it will be done by then."""
    any_time: bool = False
    after: tuple[int, ...] = ()
    after_failure: Literal["hold", "run"] = "hold"
    on_failure: Literal["continue", "stop"] = "continue"
    adopts: int | None = None
    """The job whose last good checkpoint it goes on from, in the middle."""
    continues: int | None = None
    """The job whose result or checkpoint it begins with; None also where that was deleted."""
    continued_by: tuple[int, ...] = ()
    """The jobs that begin with what this one left."""
    sweep_id: int | None = None
    """The sweep that it is a member of."""
    created_at: float
    started_at: float | None
    ended_at: float | None

    @property
    def terminal(self) -> bool:
        """Whether the job can never change again."""
        return self.state in TERMINAL


_GATHERED: Final = {
    "after": "SELECT group_concat(after_id) FROM job_dependencies WHERE job_id = jobs.id",
    "continued_by": "SELECT group_concat(id) FROM jobs AS later WHERE later.continues = jobs.id",
}
"""Lists of jobs, each as one text."""
_COLUMNS: Final = ", ".join(
    f"({_GATHERED[name]}) AS {name}" if name in _GATHERED else name
    for name in JobRecord.__struct_fields__
)
_RANKS: Final = ("yield", "pause", "cancel")
"""What may be wanted of a live job, the stronger later."""


class JobStore:
    """All reads and writes of jobs."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database
        self._queued = QueuedJobs(database, lambda: self._unended(["queued"]))

    def add(
        self,
        spec: JobSpec,
        now: float,
        timing: JobTiming | None = None,
        adopts: int | None = None,
        sweep_id: int | None = None,
    ) -> JobRecord:
        """Queue a job at the end.

        Raises:
            SlidepackError: RUN-NOT-FOUND where it comes after a job that does not exist.
        """
        when = timing or JobTiming()
        with self._db.transaction():
            row = self._db.query(
                "INSERT INTO jobs (name, state, reason, position, spec, model_id, dataset_id, "
                "created_at, priority, not_before, deadline, any_time, after_failure, on_failure, "
                "adopts, sweep_id) "
                "VALUES (?, 'draft', 'being made', "
                "(SELECT COALESCE(MAX(position), 0) + 1 FROM jobs WHERE ended_at IS NULL), "
                "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
                spec.name,
                msgspec.json.encode(spec).decode(),
                spec.base.model_id,
                int(spec.dataset.dataset_id),
                now,
                when.priority,
                when.not_before,
                when.deadline,
                when.any_time,
                when.after_failure,
                when.on_failure,
                adopts,
                sweep_id,
            )[0]
            if spec.continues is not None:
                self._db.execute(
                    "UPDATE jobs SET continues = (SELECT id FROM jobs WHERE id = ?), origin = ? "
                    "WHERE id = ?",
                    int(spec.continues.job),
                    Path(spec.continues.path).name,
                    row["id"],
                )
            for earlier in when.after:
                self.get(earlier)
                self._db.execute(
                    "INSERT INTO job_dependencies (job_id, after_id) VALUES (?, ?)",
                    row["id"],
                    earlier,
                )
            self.move(row["id"], "queued", "waits for its turn", now)
        return self.get(row["id"])

    def promise(self, job_ids: Sequence[int]) -> None:
        """Take note that a plan has these done by their deadlines."""
        with self._db.transaction():
            for job_id in job_ids:
                self._db.execute("UPDATE jobs SET promised = 1 WHERE id = ?", job_id)

    def get(self, job_id: int) -> JobRecord:
        """Return a job.

        Raises:
            SlidepackError: RUN-NOT-FOUND.
        """
        row = self._db.one(f"SELECT {_COLUMNS} FROM jobs WHERE id = ?", job_id)
        if row is None:
            raise _not_found(job_id)
        return _job(row)

    def spec(self, job_id: int) -> JobSpec:
        """Return what the job was queued with.

        Raises:
            SlidepackError: RUN-NOT-FOUND.
        """
        row = self._db.one("SELECT spec FROM jobs WHERE id = ?", job_id)
        if row is None:
            raise _not_found(job_id)
        return msgspec.json.decode(row["spec"], type=JobSpec)

    def list_jobs(self, limit: int = 200) -> list[JobRecord]:
        """Return jobs: the live, then the queue in its order, then the ended, newest first."""
        waiting = self._db.query(
            f"SELECT {_COLUMNS} FROM jobs WHERE ended_at IS NULL "
            "ORDER BY state IN ('queued', 'paused', 'draft'), priority DESC, position LIMIT ?",
            limit,
        )
        ended = self._db.query(
            f"SELECT {_COLUMNS} FROM jobs WHERE ended_at IS NOT NULL "
            "ORDER BY ended_at DESC LIMIT ?",
            limit - len(waiting),
        )
        return [_job(row) for row in waiting + ended]

    def signs(self) -> dict[int, str]:
        """Return, of each job that has not ended, a text that is another one once it stands
        otherwise; steps and losses are no part of it."""
        rows = self._db.query(
            "SELECT id, state || char(10) || phase || char(10) || COALESCE(wanted, '') || char(10) "
            "|| COALESCE(error, '') || char(10) || reason AS sign FROM jobs WHERE ended_at IS NULL"
        )
        return {row["id"]: row["sign"] for row in rows}

    def waiting_first(self, limit: int) -> list[JobRecord]:
        """Return the first of the jobs that have no worker yet, in the queue's order."""
        # Without the hint, SQLite sorts the whole queue, with all that it gathers of each job.
        rows = self._db.query(
            f"SELECT {_COLUMNS} FROM jobs INDEXED BY jobs_waiting WHERE ended_at IS NULL "
            "AND state IN ('queued', 'paused', 'draft') ORDER BY priority DESC, position LIMIT ?",
            limit,
        )
        return [_job(row) for row in rows]

    def ended_last(self, limit: int) -> list[JobRecord]:
        """Return the jobs that ended last, the newest first."""
        rows = self._db.query(
            f"SELECT {_COLUMNS} FROM jobs WHERE ended_at IS NOT NULL "
            "ORDER BY ended_at DESC LIMIT ?",
            limit,
        )
        return [_job(row) for row in rows]

    def counts(self) -> dict[JobState, int]:
        """Return how many jobs there are in each state; states without any are left out."""
        # By the index that is in the order of the states: nothing is sorted, no table row is read.
        rows = self._db.values(
            "SELECT state, COUNT(*) FROM jobs INDEXED BY jobs_by_state GROUP BY state"
        )
        return dict(rows)

    def live(self) -> list[JobRecord]:
        """Return the jobs that own a worker."""
        return self._unended(sorted(LIVE))

    def queued(self) -> list[JobRecord]:
        """Return the jobs that wait, in the order in which they are to run."""
        return self._queued.now()

    def paused(self) -> list[JobRecord]:
        """Return the paused jobs, in the queue's order."""
        return self._unended(["paused"])

    def of_sweep(self, sweep_id: int) -> list[JobRecord]:
        """Return the members of a sweep, in the order in which they were added."""
        rows = self._db.query(
            f"SELECT {_COLUMNS} FROM jobs WHERE sweep_id = ? ORDER BY id", sweep_id
        )
        return [_job(row) for row in rows]

    def listed(self, job_ids: Iterable[int]) -> dict[int, JobRecord]:
        """Return those of the jobs that there are, by id."""
        wanted = sorted(set(job_ids))
        marks = ", ".join("?" * len(wanted))
        rows = self._db.query(f"SELECT {_COLUMNS} FROM jobs WHERE id IN ({marks})", *wanted)
        return {row["id"]: _job(row) for row in rows}

    def names_unended(self) -> dict[int, str]:
        """Return the names of the jobs that have not ended, by id."""
        rows = self._db.values("SELECT id, name FROM jobs WHERE ended_at IS NULL")
        return dict(rows)

    def states_of(self, job_ids: Iterable[int]) -> dict[int, JobState]:
        """Return the states of jobs by id."""
        wanted = sorted(set(job_ids))
        marks = ", ".join("?" * len(wanted))
        rows = self._db.query(f"SELECT id, state FROM jobs WHERE id IN ({marks})", *wanted)
        return {row["id"]: row["state"] for row in rows}

    def _unended(self, states: list[str]) -> list[JobRecord]:
        marks = ", ".join("?" * len(states))
        rows = self._db.query(
            f"SELECT {_COLUMNS} FROM jobs WHERE ended_at IS NULL AND state IN ({marks}) "
            "ORDER BY priority DESC, position",
            *states,
        )
        return [_job(row) for row in rows]

    def move(self, job_id: int, to_state: JobState, reason: str, now: float) -> None:
        """Change a job's state, once, with a reason.

        Raises:
            SlidepackError: RUN-STATE where the state machine has no such transition.
        """
        with self._db.transaction():
            job = self.get(job_id)
            if to_state not in TRANSITIONS[job.state]:
                raise SlidepackError(
                    "RUN-STATE",
                    f"Job {job_id} cannot become {to_state}.",
                    why=f"it is {job.state}",
                    fix="Look at it with `slidepack jobs show`.",
                )
            self._db.execute(
                "INSERT INTO transitions (job_id, at, from_state, to_state, reason) "
                "VALUES (?, ?, ?, ?, ?)",
                job_id,
                now,
                job.state,
                to_state,
                reason,
            )
            self._db.execute(
                "UPDATE jobs SET state = ?, reason = ?, "
                "started_at = CASE WHEN ? = 'starting' THEN COALESCE(started_at, ?) "
                "ELSE started_at END, "
                "ended_at = CASE WHEN ? THEN ? ELSE ended_at END, "
                "wanted = CASE WHEN ? THEN NULL ELSE wanted END, "
                "wanted_why = CASE WHEN ? THEN '' ELSE wanted_why END WHERE id = ?",
                to_state,
                reason,
                to_state,
                now,
                to_state in TERMINAL,
                now,
                to_state not in LIVE,
                to_state not in LIVE,
                job_id,
            )

    def explain(self, job_id: int, reason: str) -> None:
        """Say why a waiting job waits; not a transition."""
        self._db.execute(
            "UPDATE jobs SET reason = ? WHERE id = ? AND state = 'queued' AND reason <> ?",
            reason,
            job_id,
            reason,
        )

    def want(self, job_id: int, wanted: str, now: float, why: str = "") -> None:
        """Ask the supervisor for `yield`, `pause` or `cancel` of a live job; the later outranks.

        Asking again changes nothing: the time that the worker has to leave does not start anew.
        """
        weaker = _RANKS[: _RANKS.index(wanted)]
        marks = ", ".join("?" * len(weaker))
        self._db.execute(
            "UPDATE jobs SET wanted = ?, wanted_at = ?, wanted_why = ? WHERE id = ? "
            f"AND (wanted IS NULL OR wanted IN ({marks}))",
            wanted,
            now,
            why,
            job_id,
            *weaker,
        )

    def run_after_failure(self, job_id: int) -> None:
        """Let a job run although one that it comes after failed."""
        self._db.execute("UPDATE jobs SET after_failure = 'run' WHERE id = ?", job_id)

    def wait_for_instead(self, earlier: int, instead: int) -> None:
        """Let the jobs that wait for one job wait for another."""
        self._db.execute(
            "UPDATE job_dependencies SET after_id = ? WHERE after_id = ? "
            "AND job_id IN (SELECT id FROM jobs WHERE ended_at IS NULL)",
            instead,
            earlier,
        )

    def place(self, job_id: int, before: int | None) -> None:
        """Put a job right before another one, with its priority, or at the end of the queue."""
        place_jobs(self._db, (job_id,), before)

    def set_timing(self, job_id: int, timing: JobTiming) -> None:
        """Change a job's priority, its earliest time, its deadline and whether windows bind it.

        A promise holds for the deadline that it was made for.
        """
        self._db.execute(
            "UPDATE jobs SET priority = ?, not_before = ?, any_time = ?, "
            "promised = CASE WHEN deadline IS ? THEN promised ELSE 0 END, deadline = ? "
            "WHERE id = ?",
            timing.priority,
            timing.not_before,
            timing.any_time,
            timing.deadline,
            timing.deadline,
            job_id,
        )

    def needed_by(self, job_id: int) -> list[int]:
        """Return the jobs that have not ended and go on from this one, or come after it."""
        rows = self._db.query(
            "SELECT id FROM jobs WHERE ended_at IS NULL AND (adopts = ? OR id IN "
            "(SELECT job_id FROM job_dependencies WHERE after_id = ?)) ORDER BY id",
            job_id,
            job_id,
        )
        return [int(row["id"]) for row in rows]

    def remove(self, job_id: int) -> None:
        """Delete a job with its attempts and its history."""
        with self._db.transaction():
            for statement in (
                "UPDATE jobs SET adopts = NULL WHERE adopts = ?",
                "UPDATE jobs SET continues = NULL WHERE continues = ?",
                "DELETE FROM job_dependencies WHERE job_id = ?",
                "DELETE FROM job_dependencies WHERE after_id = ?",
                "DELETE FROM transitions WHERE job_id = ?",
                "DELETE FROM attempts WHERE job_id = ?",
                "DELETE FROM jobs WHERE id = ?",
            ):
                self._db.execute(statement, job_id)

    def place_first(self, job_id: int) -> None:
        """Put a job before all others of its priority that wait."""
        self._db.execute(
            "UPDATE jobs SET position = (SELECT COALESCE(MIN(other.position) - 1, jobs.position) "
            "FROM jobs AS other WHERE other.ended_at IS NULL AND other.id <> jobs.id "
            "AND other.priority = jobs.priority) WHERE id = ?",
            job_id,
        )

    def keep_paused(self, job_id: int) -> None:
        """Let a job that a full disk paused stay so until its user resumes it."""
        self._db.execute(
            "UPDATE jobs SET error = NULL, reason = 'paused' WHERE id = ? AND state = 'paused'",
            job_id,
        )

    def set_error(self, job_id: int, error: ErrorReport | None) -> None:
        """Record or clear the job's error."""
        text = None if error is None else msgspec.json.encode(error).decode()
        self._db.execute("UPDATE jobs SET error = ? WHERE id = ?", text, job_id)

    def set_result(self, job_id: int, folder: str) -> None:
        """Record where the job's result is."""
        self._db.execute("UPDATE jobs SET result = ? WHERE id = ?", folder, job_id)

    def transitions(self, job_id: int) -> list[Row]:
        """Return the job's history, oldest first."""
        return self._db.query(
            "SELECT at, from_state, to_state, reason FROM transitions WHERE job_id = ? ORDER BY id",
            job_id,
        )


def _job(row: dict[str, Any]) -> JobRecord:
    error = row["error"]
    values = {name: row[name] for name in JobRecord.__struct_fields__}
    values["any_time"] = bool(row["any_time"])
    values["promised"] = bool(row["promised"])
    for name in _GATHERED:
        values[name] = [int(job_id) for job_id in (row[name] or "").split(",") if job_id]
    values["error"] = None if error is None else msgspec.json.decode(error, type=ErrorReport)
    return msgspec.convert(values, JobRecord, from_attributes=True)


def _not_found(job_id: int) -> SlidepackError:
    return SlidepackError(
        "RUN-NOT-FOUND", f"There is no job {job_id}.", fix="`slidepack jobs list` shows them."
    )
