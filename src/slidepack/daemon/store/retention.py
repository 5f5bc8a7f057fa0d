"""What retention asks of the database: which jobs there are, who needs whom, what is left over."""

from slidepack.daemon.store.database import Database


class RetentionStore:
    """Reads and writes for `supervisor.retention`."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def newest_job_id(self) -> int:
        """Return the highest id of a job, 0 where there is none."""
        row = self._db.one("SELECT COALESCE(MAX(id), 0) AS id FROM jobs")
        assert row is not None
        return int(row["id"])

    def job_ids_up_to(self, job_id: int, limit: int) -> list[int]:
        """Return ids of jobs, this one and older, newest first."""
        rows = self._db.query(
            "SELECT id FROM jobs WHERE id <= ? ORDER BY id DESC LIMIT ?", job_id, limit
        )
        return [int(row["id"]) for row in rows]

    def is_adopted(self, job_id: int) -> bool:
        """Return whether a job that has not ended goes on from a checkpoint of this one."""
        row = self._db.one(
            "SELECT 1 FROM jobs WHERE ended_at IS NULL AND adopts = ? LIMIT 1", job_id
        )
        return row is not None

    def origins(self) -> set[str]:
        """Return the folders of what jobs go on from that may still begin, or be tried again."""
        rows = self._db.query(
            "SELECT DISTINCT origin FROM jobs WHERE origin <> '' AND state <> 'completed'"
        )
        return {str(row["origin"]) for row in rows}

    def add_leftover(self, job_id: int) -> None:
        """Note that the folder of a deleted job is to be removed."""
        self._db.execute("INSERT OR IGNORE INTO job_leftovers VALUES (?)", job_id)

    def leftovers(self) -> list[int]:
        """Return the deleted jobs whose folders are still to be removed, oldest first."""
        rows = self._db.query("SELECT job_id FROM job_leftovers ORDER BY job_id")
        return [int(row["job_id"]) for row in rows]

    def drop_leftover(self, job_id: int) -> None:
        """Note that a folder is gone."""
        self._db.execute("DELETE FROM job_leftovers WHERE job_id = ?", job_id)
