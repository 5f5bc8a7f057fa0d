"""Attempts: the tries at a job, each with a worker and a run folder of its own."""

import msgspec

from slidepack.daemon.states import AttemptState
from slidepack.daemon.store.database import Database


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
    process_started: int | None = None
    """When its process started, in clock ticks since the boot."""
    boot_id: str = ""
    """The boot that it belongs to."""
    leave_seconds: float | None = None
    """From the request to leave until its process was gone; None where nobody asked."""
    pack_id: int | None = None
    """The pack in which it is a lane; None where its worker is its own."""
    device: str = ""
    """`cpu`, or torch's name of its card; empty where it is of an older version."""


class AttemptStore:
    """All reads and writes of attempts."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def add(
        self,
        job_id: int,
        number: int,
        folder: str,
        nonce: str,
        now: float,
        *,
        device: str = "",
        pack_id: int | None = None,
    ) -> None:
        """Record an attempt before its worker starts, or before it joins a pack."""
        self._db.execute(
            "INSERT INTO attempts (job_id, number, state, folder, nonce, started_at, device, "
            "pack_id) VALUES (?, ?, 'live', ?, ?, ?, ?, ?)",
            job_id,
            number,
            folder,
            nonce,
            now,
            device,
            pack_id,
        )

    def remove(self, job_id: int, number: int) -> None:
        """Take back an attempt that never had a worker."""
        self._db.execute("DELETE FROM attempts WHERE job_id = ? AND number = ?", job_id, number)

    def set_process(
        self, job_id: int, number: int, *, pid: int, started: int | None, boot_id: str
    ) -> None:
        """Record the worker's process: its id, its start in clock ticks, and the boot."""
        self._db.execute(
            "UPDATE attempts SET pid = ?, process_started = ?, boot_id = ? "
            "WHERE job_id = ? AND number = ?",
            pid,
            started,
            boot_id,
            job_id,
            number,
        )

    def end(
        self,
        attempt: AttemptRecord,
        state: AttemptState,
        exit_code: int | None,
        now: float,
        leave_seconds: float | None = None,
    ) -> None:
        """Record how an attempt ended."""
        self._db.execute(
            "UPDATE attempts SET state = ?, exit_code = ?, ended_at = ?, leave_seconds = ? "
            "WHERE job_id = ? AND number = ?",
            state,
            exit_code,
            now,
            leave_seconds,
            attempt.job_id,
            attempt.number,
        )

    def of(self, job_id: int) -> list[AttemptRecord]:
        """Return the job's attempts, oldest first."""
        rows = self._db.query("SELECT * FROM attempts WHERE job_id = ? ORDER BY number", job_id)
        return [msgspec.convert(row, AttemptRecord) for row in rows]

    def of_pack(self, pack_id: int) -> list[AttemptRecord]:
        """Return the attempts that were lanes of a pack."""
        rows = self._db.query(
            "SELECT * FROM attempts WHERE pack_id = ? ORDER BY job_id, number", pack_id
        )
        return [msgspec.convert(row, AttemptRecord) for row in rows]

    def live_in_pack(self, pack_id: int) -> list[AttemptRecord]:
        """Return the lanes of a pack that have not ended."""
        return [attempt for attempt in self.of_pack(pack_id) if attempt.state == "live"]

    def live(self) -> list[AttemptRecord]:
        """Return the attempts that have not ended."""
        rows = self._db.query("SELECT * FROM attempts WHERE state = 'live' ORDER BY job_id")
        return [msgspec.convert(row, AttemptRecord) for row in rows]
