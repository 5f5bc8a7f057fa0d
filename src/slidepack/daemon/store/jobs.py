"""Jobs and attempts: the queue and its state machine."""

from typing import Any

import msgspec

from slidepack.daemon.states import LIVE, TERMINAL, TRANSITIONS, AttemptState, JobState
from slidepack.daemon.store.database import Database, Row
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
    created_at: float
    started_at: float | None
    ended_at: float | None

    @property
    def terminal(self) -> bool:
        """Whether the job can never change again."""
        return self.state in TERMINAL


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One try at a job."""

    job_id: int
    number: int
    state: AttemptState
    folder: str
    nonce: str
    pid: int | None
    events_offset: int
    first_step: int | None
    """First step it reported."""
    last_step: int | None
    started_at: float
    ended_at: float | None
    exit_code: int | None


class JobStore:
    """All reads and writes of jobs and attempts."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def add(self, spec: JobSpec, now: float) -> JobRecord:
        """Queue a job at the end."""
        with self._db.transaction():
            row = self._db.query(
                "INSERT INTO jobs (name, state, reason, position, spec, model_id, dataset_id, "
                "created_at) VALUES (?, 'draft', 'being made', "
                "(SELECT COALESCE(MAX(position), 0) + 1 FROM jobs), ?, ?, ?, ?) RETURNING id",
                spec.name,
                msgspec.json.encode(spec).decode(),
                spec.base.model_id,
                int(spec.dataset.dataset_id),
                now,
            )[0]
            self.move(row["id"], "queued", "waits for its turn", now)
        return self.get(row["id"])

    def get(self, job_id: int) -> JobRecord:
        """Return a job.

        Raises:
            SlidepackError: RUN-NOT-FOUND.
        """
        row = self._db.one("SELECT * FROM jobs WHERE id = ?", job_id)
        if row is None:
            raise SlidepackError(
                "RUN-NOT-FOUND",
                f"There is no job {job_id}.",
                fix="`slidepack jobs list` shows them.",
            )
        return _job(row)

    def spec(self, job_id: int) -> JobSpec:
        """Return what the job was queued with."""
        row = self._db.one("SELECT spec FROM jobs WHERE id = ?", job_id)
        assert row is not None
        return msgspec.json.decode(row["spec"], type=JobSpec)

    def list_jobs(self, limit: int = 200) -> list[JobRecord]:
        """Return jobs: the live, then the queue in its order, then the ended, newest first."""
        rows = self._db.query(
            "SELECT * FROM jobs ORDER BY CASE WHEN ended_at IS NOT NULL THEN 2 "
            "WHEN state IN ('queued', 'paused', 'draft') THEN 1 ELSE 0 END, "
            "CASE WHEN ended_at IS NULL THEN position ELSE -ended_at END LIMIT ?",
            limit,
        )
        return [_job(row) for row in rows]

    def live(self) -> list[JobRecord]:
        """Return the jobs that own a worker."""
        marks = ", ".join("?" * len(LIVE))
        rows = self._db.query(f"SELECT * FROM jobs WHERE state IN ({marks})", *sorted(LIVE))
        return [_job(row) for row in rows]

    def next_queued(self) -> JobRecord | None:
        """Return the job at the head of the queue, or None."""
        row = self._db.one("SELECT * FROM jobs WHERE state = 'queued' ORDER BY position LIMIT 1")
        return None if row is None else _job(row)

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
                "wanted = CASE WHEN ? THEN NULL ELSE wanted END WHERE id = ?",
                to_state,
                reason,
                to_state,
                now,
                to_state in TERMINAL,
                now,
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

    def want(self, job_id: int, wanted: str, now: float) -> None:
        """Ask the supervisor for `pause`, `cancel` or `yield` of a live job; cancel outranks.

        Asking again changes nothing: the time that the worker has to leave does not start anew.
        """
        self._db.execute(
            "UPDATE jobs SET wanted = ?, wanted_at = ? WHERE id = ? "
            "AND (wanted IS NULL OR wanted NOT IN ('cancel', ?))",
            wanted,
            now,
            job_id,
            wanted,
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

    def add_attempt(self, job_id: int, number: int, folder: str, nonce: str, now: float) -> None:
        """Record an attempt before its worker starts."""
        self._db.execute(
            "INSERT INTO attempts (job_id, number, state, folder, nonce, started_at) "
            "VALUES (?, ?, 'live', ?, ?, ?)",
            job_id,
            number,
            folder,
            nonce,
            now,
        )

    def set_pid(self, job_id: int, number: int, pid: int) -> None:
        """Record the worker's process."""
        self._db.execute(
            "UPDATE attempts SET pid = ? WHERE job_id = ? AND number = ?", pid, job_id, number
        )

    def end_attempt(
        self, attempt: AttemptRecord, state: AttemptState, exit_code: int | None, now: float
    ) -> None:
        """Record how an attempt ended."""
        self._db.execute(
            "UPDATE attempts SET state = ?, exit_code = ?, ended_at = ? "
            "WHERE job_id = ? AND number = ?",
            state,
            exit_code,
            now,
            attempt.job_id,
            attempt.number,
        )

    def attempts(self, job_id: int) -> list[AttemptRecord]:
        """Return the job's attempts, oldest first."""
        rows = self._db.query("SELECT * FROM attempts WHERE job_id = ? ORDER BY number", job_id)
        return [msgspec.convert(row, AttemptRecord) for row in rows]

    def live_attempts(self) -> list[AttemptRecord]:
        """Return the attempts that have not ended."""
        rows = self._db.query("SELECT * FROM attempts WHERE state = 'live' ORDER BY job_id")
        return [msgspec.convert(row, AttemptRecord) for row in rows]


def _job(row: dict[str, Any]) -> JobRecord:
    error = row["error"]
    values = {name: row[name] for name in JobRecord.__struct_fields__ if name != "error"}
    report = None if error is None else msgspec.json.decode(error, type=ErrorReport)
    return msgspec.structs.replace(
        msgspec.convert(values | {"error": None}, JobRecord), error=report
    )
