"""Whether jobs' models are better than their base: the newest report of each."""

import msgspec

from slidepack.daemon.store.database import Database
from slidepack.engine.contract.judgement import JudgeReport, encode_report

__all__ = ["Judgements"]


class Judgements:
    """Reads and writes reports."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def keep(self, job_id: int, attempt: int, report: JudgeReport) -> None:
        """Store a job's report; it takes the place of an earlier one."""
        self._db.execute(
            "INSERT OR REPLACE INTO judgements VALUES (?, ?, ?)",
            job_id,
            attempt,
            encode_report(report),
        )

    def of_job(self, job_id: int) -> JudgeReport | None:
        """Return a job's report, or None."""
        row = self._db.one("SELECT report FROM judgements WHERE job_id = ?", job_id)
        return None if row is None else msgspec.json.decode(row["report"], type=JudgeReport)

    def of_sweep(self, sweep_id: int) -> dict[int, JudgeReport]:
        """Return the reports of a sweep's members, by job."""
        rows = self._db.query(
            "SELECT job_id, report FROM judgements JOIN jobs ON jobs.id = job_id "
            "WHERE sweep_id = ?",
            sweep_id,
        )
        return {row["job_id"]: msgspec.json.decode(row["report"], type=JudgeReport) for row in rows}

    def forget(self, job_id: int) -> None:
        """Delete a job's report."""
        self._db.execute("DELETE FROM judgements WHERE job_id = ?", job_id)
