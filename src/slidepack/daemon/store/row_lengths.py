"""What the rows of a dataset came to with a base, learned from the steps of jobs that ran."""

from typing import Final

import msgspec

from slidepack.daemon.store.database import Database
from slidepack.engine.contract.job import JobSpec

__all__ = ["RowLength", "RowLengths"]

_ENOUGH_STEPS: Final = 200
"""After which the average does not move any more."""


class RowLength(msgspec.Struct, frozen=True, kw_only=True):
    """An average over the steps of a job."""

    tokens: float
    """Of a row that is trained."""
    kept: float
    """Rows that are trained, of those that the dataset and the shares held out let expect: fewer
    where long ones are left out, more where they are split."""
    steps: int
    """That it is made of."""


class RowLengths:
    """All reads and writes of row lengths."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def known(self, spec: JobSpec) -> RowLength | None:
        """Return what rows came to in jobs that read them as this one does, or None."""
        row = self._db.one(
            "SELECT tokens, kept, steps FROM row_lengths "
            "WHERE dataset = ? AND base = ? AND max_seq_len = ? AND too_long = ?",
            *_key(spec),
        )
        return None if row is None else msgspec.convert(row, RowLength)

    def learn(self, job_id: int, spec: JobSpec, expected_rows: float) -> None:
        """Learn from the steps that a job has reported, where they tell more than is known.

        Args:
            job_id: of the job.
            spec: of the job.
            expected_rows: that the dataset has beside those held out.
        """
        known = self.known(spec)
        if known is not None and known.steps >= _ENOUGH_STEPS:
            return
        started = self._db.one(
            "SELECT json_extract(body, '$.train_rows') AS rows FROM events INDEXED BY events_type "
            "WHERE job_id = ? AND type = 'started' ORDER BY id DESC LIMIT 1",
            job_id,
        )
        found = self._db.one(
            "SELECT COUNT(*) AS steps, AVG(tokens) AS tokens FROM "
            "(SELECT json_extract(body, '$.tokens') AS tokens FROM events INDEXED BY events_type "
            "WHERE job_id = ? AND type = 'progress' ORDER BY id LIMIT ?)",
            job_id,
            _ENOUGH_STEPS,
        )
        if started is None or found is None or not found["tokens"] or not started["rows"]:
            return
        if known is not None and found["steps"] <= known.steps:
            return
        rows = int(started["rows"])
        # The last batch of an epoch may be short.
        rows_a_step = rows / -(-rows // spec.batch_size)
        self._db.execute(
            "INSERT OR REPLACE INTO row_lengths VALUES (?, ?, ?, ?, ?, ?, ?)",
            *_key(spec),
            found["tokens"] / rows_a_step,
            rows / expected_rows if expected_rows > 0.0 else 1.0,
            found["steps"],
        )


def _key(spec: JobSpec) -> tuple[str, str, int, str]:
    return (
        spec.dataset.content_hash,
        spec.base.content_hash,
        spec.max_seq_len,
        spec.too_long,
    )
