"""What workers reported: events as they came, and the series that charts and pages read."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from slidepack.daemon.store.attempts import AttemptRecord
from slidepack.daemon.store.database import Database, Row
from slidepack.daemon.store.judgements import Judgements
from slidepack.engine.contract.events import (
    AnyEvent,
    Checkpointed,
    Evaluated,
    Failed,
    Finished,
    Judged,
    PhaseChanged,
    Progress,
    Sampled,
    Started,
    Warned,
    Yielded,
)
from slidepack.engine.contract.judgement import JudgeReport


class RunLog:
    """Writes events exactly once and reads the series."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database
        self._judgements = Judgements(database)

    def ingest(self, attempt: AttemptRecord, events: Sequence[AnyEvent], offset: int) -> None:
        """Store events and the file offset behind them, in one transaction.

        Args:
            attempt: whose events they are.
            events: in the order of the file.
            offset: bytes of the events file that are stored once this returns.
        """
        with self._db.transaction():
            for event in events:
                self._db.execute(
                    "INSERT INTO events (job_id, attempt, type, body) VALUES (?, ?, ?, ?)",
                    attempt.job_id,
                    attempt.number,
                    event.__struct_config__.tag,
                    msgspec.json.encode(event).decode(),
                )
                self._apply(attempt, event)
            self._db.execute(
                "UPDATE attempts SET events_offset = ? WHERE job_id = ? AND number = ?",
                offset,
                attempt.job_id,
                attempt.number,
            )

    def _apply(self, attempt: AttemptRecord, event: AnyEvent) -> None:
        job_id = attempt.job_id
        match event:
            case Started():
                self._db.execute(
                    "UPDATE jobs SET total_steps = ?, step = ? WHERE id = ?",
                    event.total_steps,
                    event.from_step,
                    job_id,
                )
            case PhaseChanged():
                self.set_phase(job_id, event.phase)
            case Progress():
                self._apply_progress(attempt, event)
            case Evaluated():
                self._db.execute(
                    "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?)",
                    job_id,
                    event.step,
                    event.split,
                    event.loss,
                    event.rows,
                )
            case Sampled():
                self._db.execute(
                    "INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?)",
                    job_id,
                    event.step,
                    event.prompt,
                    event.answer,
                )
            case Judged():
                self._judgements.keep(job_id, attempt.number, event.report)
            case Warned():
                self._db.execute(
                    "INSERT OR REPLACE INTO warnings VALUES (?, ?, ?, ?)",
                    job_id,
                    attempt.number,
                    event.code,
                    event.message,
                )
            case _:
                pass

    def set_phase(self, job_id: int, phase: str) -> None:
        """Record what a job's worker is doing."""
        self._db.execute("UPDATE jobs SET phase = ? WHERE id = ?", phase, job_id)

    def _apply_progress(self, attempt: AttemptRecord, event: Progress) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO progress VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            attempt.job_id,
            event.step,
            attempt.number,
            event.at,
            event.loss,
            event.grad_norm,
            event.lr,
            event.tokens_per_second,
        )
        self._db.execute(
            "UPDATE jobs SET step = ?, total_steps = ?, loss = ?, eta_seconds = ?, "
            "tokens_per_second = ? WHERE id = ?",
            event.step,
            event.total_steps,
            event.loss,
            event.eta_seconds,
            event.tokens_per_second,
            attempt.job_id,
        )
        self._db.execute(
            "UPDATE attempts SET first_step = COALESCE(first_step, ?), last_step = ? "
            "WHERE job_id = ? AND number = ?",
            event.step,
            event.step,
            attempt.job_id,
            attempt.number,
        )

    def events_after(self, event_id: int, job_id: int | None, limit: int = 500) -> list[Row]:
        """Return stored events with a higher id, oldest first; of one job, or of all."""
        if job_id is None:
            return self._db.query(
                "SELECT * FROM events WHERE id > ? ORDER BY id LIMIT ?", event_id, limit
            )
        return self._db.query(
            "SELECT * FROM events WHERE job_id = ? AND id > ? ORDER BY id LIMIT ?",
            job_id,
            event_id,
            limit,
        )

    def ending(self, job_id: int, attempt: int) -> Finished | Yielded | Failed | None:
        """Return the event with which an attempt ended, or None where it died without one."""
        # Without the hint, SQLite walks back from the newest event for the sake of the order.
        row = self._db.one(
            "SELECT body FROM events INDEXED BY events_type WHERE job_id = ? AND attempt = ? "
            "AND type IN ('finished', 'yielded', 'failed') ORDER BY id DESC LIMIT 1",
            job_id,
            attempt,
        )
        if row is None:
            return None
        return msgspec.json.decode(row["body"], type=Finished | Yielded | Failed)

    def drives_moved_by(self, job_id: int) -> str:
        """Return what moves a job's state to drives and back, as its last start told it."""
        row = self._db.one(
            "SELECT json_extract(body, '$.drives') AS drives FROM events INDEXED BY events_type "
            "WHERE job_id = ? AND type = 'started' ORDER BY id DESC LIMIT 1",
            job_id,
        )
        return (row["drives"] or "") if row else ""

    def has_good_checkpoint(self, job_id: int) -> bool:
        """Return whether a checkpoint that is still on disk was healthy when it was made."""
        rows = self._db.query(
            "SELECT body FROM events INDEXED BY events_type "
            "WHERE job_id = ? AND type = 'checkpoint' ORDER BY id DESC",
            job_id,
        )
        seen: set[str] = set()
        for row in rows:
            event = msgspec.json.decode(row["body"], type=Checkpointed)
            # A step that is saved anew takes the place of what an earlier event tells of.
            if event.path in seen:
                continue
            seen.add(event.path)
            if event.healthy and Path(event.path).is_dir():
                return True
        return False

    def checkpoints(self, job_id: int, limit: int) -> list[Checkpointed]:
        """Return what the newest checkpoints of a job told, newest first, deleted ones too.

        Of those that were written to the same place, the newest is told alone.
        """
        rows = self._db.query(
            "SELECT body FROM events INDEXED BY events_type "
            "WHERE job_id = ? AND type = 'checkpoint' ORDER BY id DESC LIMIT ?",
            job_id,
            limit,
        )
        told = [msgspec.json.decode(row["body"], type=Checkpointed) for row in rows]
        newest: dict[str, Checkpointed] = {}
        for event in told:
            newest.setdefault(event.path, event)
        return list(newest.values())

    def drop_steps(self, job_id: int, limit: int) -> int:
        """Delete the oldest `progress` events of an ended job, and return how many.

        The series that charts read keeps every step.
        """
        found = self._db.query(
            "SELECT id FROM events INDEXED BY events_type "
            "WHERE job_id = ? AND type = 'progress' ORDER BY id LIMIT ?",
            job_id,
            limit,
        )
        if found:
            self._db.execute(
                "DELETE FROM events INDEXED BY events_type "
                "WHERE job_id = ? AND type = 'progress' AND id <= ?",
                job_id,
                found[-1]["id"],
            )
        return len(found)

    def forget(self, job_id: int) -> None:
        """Delete everything that the workers of a job reported."""
        with self._db.transaction():
            for table in ("events", "progress", "evaluations", "samples", "warnings"):
                self._db.execute(f"DELETE FROM {table} WHERE job_id = ?", job_id)
            self._judgements.forget(job_id)

    def last_event_id(self) -> int:
        """Return the id of the newest event, 0 where there is none."""
        row = self._db.one("SELECT COALESCE(MAX(id), 0) AS id FROM events")
        assert row is not None
        return int(row["id"])

    def progress(self, job_id: int) -> list[Row]:
        """Return the training series by step."""
        return self._db.query(
            "SELECT step, loss, grad_norm, lr, tokens_per_second, attempt, at FROM progress "
            "WHERE job_id = ? ORDER BY step",
            job_id,
        )

    def glance(self, job_id: int, points: int) -> list[float | None]:
        """Return the training loss at `points` steps spread over the run; fewer where it has fewer.

        It looks those steps up, so it costs as much for a long run as for a short one.
        """
        rows = self._db.query(
            "WITH ends AS (SELECT MIN(step) AS low, MAX(step) AS high FROM progress "
            "WHERE job_id = ?1), "
            "places(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM places, ends "
            "WHERE n + 1 < MIN(?2, high - low + 1)) "
            "SELECT (SELECT loss FROM progress WHERE job_id = ?1 "
            "AND step >= low + n * (high - low) / MAX(MIN(?2, high - low + 1) - 1, 1) "
            "ORDER BY step LIMIT 1) AS loss FROM places, ends WHERE high IS NOT NULL",
            job_id,
            points,
        )
        return [row["loss"] for row in rows]

    def evaluations(self, job_id: int) -> list[Row]:
        """Return the held-out losses by step."""
        return self._db.query(
            "SELECT step, split, loss, rows FROM evaluations WHERE job_id = ? ORDER BY split, step",
            job_id,
        )

    def samples(self, job_id: int) -> list[Row]:
        """Return the answers, each question's oldest first."""
        return self._db.query(
            "SELECT prompt, step, answer FROM samples WHERE job_id = ? ORDER BY prompt, step",
            job_id,
        )

    def judgement(self, job_id: int) -> JudgeReport | None:
        """Return how the model compares with its base, as far as that is known."""
        return self._judgements.of_job(job_id)

    def warnings(self, job_id: int) -> list[Row]:
        """Return the warnings of all attempts."""
        return self._db.query(
            "SELECT attempt, code, message FROM warnings WHERE job_id = ? ORDER BY attempt", job_id
        )
