"""Sweeps: what was asked for, and what their members measured."""

from collections.abc import Collection

import msgspec

from slidepack.daemon.store.database import Database, Row
from slidepack.daemon.sweeps.request import SweepRequest
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec


class SweepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep; its members are jobs."""

    id: int
    name: str
    request: SweepRequest
    created_at: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A held-out loss, and the step at which it was measured."""

    step: int
    loss: float


class SweepStore:
    """All reads and writes of sweeps that are not those of their jobs."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def add(self, name: str, request: SweepRequest, now: float) -> SweepRecord:
        """Record a sweep, with no member yet."""
        row = self._db.query(
            "INSERT INTO sweeps (name, request, created_at) VALUES (?, ?, ?) RETURNING id",
            name,
            msgspec.json.encode(request).decode(),
            now,
        )[0]
        return self.get(row["id"])

    def get(self, sweep_id: int) -> SweepRecord:
        """Return a sweep.

        Raises:
            SlidepackError: RUN-NOT-FOUND.
        """
        row = self._db.one("SELECT * FROM sweeps WHERE id = ?", sweep_id)
        if row is None:
            raise SlidepackError(
                "RUN-NOT-FOUND",
                f"There is no sweep {sweep_id}.",
                fix="`slidepack sweep list` shows them.",
            )
        return _record(row)

    def list_sweeps(self) -> list[SweepRecord]:
        """Return all sweeps, newest first."""
        return [_record(row) for row in self._db.query("SELECT * FROM sweeps ORDER BY id DESC")]

    def names(self, sweep_ids: Collection[int]) -> dict[int, str]:
        """Return the names of sweeps, by id."""
        marks = ", ".join("?" * len(sweep_ids))
        rows = self._db.values(f"SELECT id, name FROM sweeps WHERE id IN ({marks})", *sweep_ids)
        return dict(rows)

    def of_job(self, job_id: int) -> SweepRecord | None:
        """Return the sweep that a job is a member of, or None."""
        row = self._db.one(
            "SELECT sweeps.* FROM sweeps JOIN jobs ON jobs.sweep_id = sweeps.id WHERE jobs.id = ?",
            job_id,
        )
        return None if row is None else _record(row)

    def remove(self, sweep_id: int) -> None:
        """Delete a sweep whose members are gone."""
        self._db.execute("DELETE FROM sweeps WHERE id = ?", sweep_id)

    def specs(self, sweep_id: int) -> dict[int, JobSpec]:
        """Return what the members were queued with, by job."""
        rows = self._db.query("SELECT id, spec FROM jobs WHERE sweep_id = ? ORDER BY id", sweep_id)
        return {row["id"]: msgspec.json.decode(row["spec"], type=JobSpec) for row in rows}

    def lowest_losses(self, sweep_id: int) -> dict[int, Measured]:
        """Return the lowest selection loss of each member's training, by job.

        What was measured before the first step is the base's, not the member's.
        """
        return self._measured(sweep_id, "selection", "MIN(evaluations.loss)")

    def last_losses(self, sweep_id: int) -> dict[int, Measured]:
        """Return the newest selection loss of each member's training, by job."""
        return self._measured(sweep_id, "selection", "MAX(evaluations.step)")

    def test_losses(self, sweep_id: int) -> dict[int, Measured]:
        """Return the loss of each member on rows that choose nothing, by job."""
        return self._measured(sweep_id, "test", "MAX(evaluations.step)")

    def seconds(self, sweep_id: int, now: float) -> dict[int, float]:
        """Return how long each member has run, all attempts together, by job.

        Members of one pack run at the same time, so their seconds do not add up.
        """
        rows = self._db.query(
            "SELECT job_id, SUM(COALESCE(attempts.ended_at, ?) - attempts.started_at) AS seconds "
            "FROM attempts JOIN jobs ON jobs.id = job_id WHERE sweep_id = ? GROUP BY job_id",
            now,
            sweep_id,
        )
        return {row["job_id"]: row["seconds"] for row in rows}

    def _measured(self, sweep_id: int, split: str, choice: str) -> dict[int, Measured]:
        # SQLite takes the other columns from the row that a lone MIN or MAX chose.
        rows = self._db.query(
            "SELECT job_id, evaluations.step AS at_step, evaluations.loss AS at_loss, "
            f"{choice} AS chosen "
            "FROM evaluations JOIN jobs ON jobs.id = job_id WHERE sweep_id = ? AND split = ? "
            "AND evaluations.step > 0 AND evaluations.loss IS NOT NULL GROUP BY job_id",
            sweep_id,
            split,
        )
        return {row["job_id"]: Measured(step=row["at_step"], loss=row["at_loss"]) for row in rows}


def _record(row: Row) -> SweepRecord:
    return SweepRecord(
        id=row["id"],
        name=row["name"],
        request=msgspec.json.decode(row["request"], type=SweepRequest),
        created_at=row["created_at"],
    )
