"""Exports in the database."""

import msgspec

from slidepack.daemon.exports.folders import ExportFolders
from slidepack.daemon.exports.record import ENDED, ExportRecord, ExportState, ExportWanted
from slidepack.daemon.store.database import Database, Row
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.export.contract import ExportResult, Verification

__all__ = ["ExportStore"]


class ExportStore:
    """All reads and writes of exports."""

    def __init__(self, database: Database, folders: ExportFolders) -> None:
        """Bind the database and the folders that records name."""
        self._db = database
        self._folders = folders

    def add(self, job_id: int, job_name: str, wanted: ExportWanted, now: float) -> ExportRecord:
        """Queue an export; one that is the same and has not ended is returned instead."""
        text = msgspec.json.encode(wanted).decode()
        with self._db.transaction():
            same = self._db.one(
                "SELECT id FROM exports WHERE job_id = ? AND wanted = ? AND ended_at IS NULL "
                "AND NOT cancelling",
                job_id,
                text,
            )
            if same is None:
                same = self._db.query(
                    "INSERT INTO exports (job_id, job_name, wanted, state, created_at) "
                    "VALUES (?, ?, ?, 'queued', ?) RETURNING id",
                    job_id,
                    job_name,
                    text,
                    now,
                )[0]
        return self.get(same["id"])

    def get(self, export_id: int) -> ExportRecord:
        """Return an export.

        Raises:
            SlidepackError: EXPORT-NOT-FOUND.
        """
        row = self._db.one("SELECT * FROM exports WHERE id = ?", export_id)
        if row is None:
            raise SlidepackError(
                "EXPORT-NOT-FOUND",
                f"There is no export {export_id}.",
                fix="`slidepack exports list` shows them.",
            )
        return self._record(row)

    def list_exports(self) -> list[ExportRecord]:
        """Return all exports, newest first."""
        return [self._record(row) for row in self._db.query("SELECT * FROM exports ORDER BY -id")]

    def of_job(self, job_id: int) -> list[ExportRecord]:
        """Return the exports of a job, newest first."""
        rows = self._db.query("SELECT * FROM exports WHERE job_id = ? ORDER BY -id", job_id)
        return [self._record(row) for row in rows]

    def unended(self) -> list[ExportRecord]:
        """Return those that wait or run, in the order in which they were asked for."""
        rows = self._db.query("SELECT * FROM exports WHERE ended_at IS NULL ORDER BY id")
        return [self._record(row) for row in rows]

    def ids(self) -> set[int]:
        """Return the ids of all exports."""
        return {int(row["id"]) for row in self._db.query("SELECT id FROM exports")}

    def begin(self, export_id: int, nonce: str, now: float) -> bool:
        """Note that a process is about to start; return whether the export still waits for one."""
        rows = self._db.query(
            "UPDATE exports SET state = 'running', nonce = ?, starts = starts + 1, "
            "started_at = COALESCE(started_at, ?) "
            "WHERE id = ? AND state = 'queued' RETURNING id",
            nonce,
            now,
            export_id,
        )
        return bool(rows)

    def running_nonces(self) -> dict[int, str]:
        """Return by what the processes of running exports are known."""
        rows = self._db.query("SELECT id, nonce FROM exports WHERE state = 'running'")
        return {int(row["id"]): str(row["nonce"]) for row in rows}

    def starts(self, export_id: int) -> int:
        """Return how often an export was started, without the times that a daemon stopped it."""
        row = self._db.one("SELECT starts FROM exports WHERE id = ?", export_id)
        return 0 if row is None else int(row["starts"])

    def queue_again(self, export_id: int, *, counts: bool) -> None:
        """Let an export start anew.

        Args:
            export_id: of one that ran.
            counts: whether the start that came to nothing was its own fault, as far as we know.
        """
        self._db.execute(
            "UPDATE exports SET state = 'queued', nonce = '', starts = starts - ? WHERE id = ?",
            int(not counts),
            export_id,
        )

    def cancel(self, export_id: int, now: float) -> None:
        """End an export that waits; ask for the end of one that runs.

        Raises:
            SlidepackError: EXPORT-NOT-FOUND, EXPORT-STATE.
        """
        with self._db.transaction():
            found = self.get(export_id)
            if found.ended:
                raise SlidepackError(
                    "EXPORT-STATE",
                    f"Export {export_id} cannot be cancelled.",
                    why=f"it is {found.state}",
                    fix=f"`slidepack exports rm {export_id}` deletes it.",
                )
            if found.state == "queued":
                self.end(export_id, "cancelled", now)
            else:
                self._db.execute("UPDATE exports SET cancelling = 1 WHERE id = ?", export_id)

    def is_cancelling(self, export_id: int) -> bool:
        """Return whether a cancel is asked for."""
        row = self._db.one("SELECT cancelling FROM exports WHERE id = ?", export_id)
        return row is not None and bool(row["cancelling"])

    def end(
        self,
        export_id: int,
        state: ExportState,
        now: float,
        *,
        result: ExportResult | None = None,
        error: ErrorReport | None = None,
        verification: Verification | None = None,
        num_bytes: int = 0,
    ) -> None:
        """Record how an export ended, and what it left on the disk."""
        assert state in ENDED, "an export ends once"
        self._db.execute(
            "UPDATE exports SET state = ?, cancelling = 0, nonce = '', bytes = ?, result = ?, "
            "verification = ?, error = ?, ended_at = ? WHERE id = ?",
            state,
            num_bytes,
            _text(result),
            _text(verification),
            _text(error),
            now,
            export_id,
        )

    def remove(self, export_id: int) -> None:
        """Forget an export."""
        self._db.execute("DELETE FROM exports WHERE id = ?", export_id)

    def _record(self, row: Row) -> ExportRecord:
        result = None
        if row["result"] is not None:
            result = msgspec.json.decode(row["result"], type=ExportResult)
        verification = error = None
        if row["verification"] is not None:
            verification = msgspec.json.decode(row["verification"], type=Verification)
        if row["error"] is not None:
            error = msgspec.json.decode(row["error"], type=ErrorReport)
        return ExportRecord(
            id=row["id"],
            job_id=row["job_id"],
            job_name=row["job_name"],
            wanted=msgspec.json.decode(row["wanted"], type=ExportWanted),
            state=row["state"],
            cancelling=bool(row["cancelling"]),
            # The data directory may have moved since.
            folder=str(self._folders.files(row["id"])),
            files={} if result is None else result.files,
            bytes=row["bytes"],
            verification=verification,
            notes=[] if result is None else result.notes,
            error=error,
            created_at=row["created_at"],
            started_at=row["started_at"],
            ended_at=row["ended_at"],
        )


def _text(value: msgspec.Struct | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
