"""What a plan is made from, as far as no other store has it: the queue's state as one value."""

from slidepack.daemon.states import LIVE
from slidepack.daemon.store.database import Database

__all__ = ["PlanInput", "QueueState"]

QueueState = tuple[tuple[int, bool, int, float | None, float | None, bool], ...]
"""Of each job that waits or runs, in the queue's order: its id, whether it has a worker, priority,
earliest time, deadline, and whether it minds no window."""


class PlanInput:
    """Reads of the planner. Any thread may use it."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def queue(self) -> QueueState:
        """Return the queue: while it is the same, a plan that was made for it holds."""
        states = sorted(LIVE)
        marks = ", ".join("?" * len(states))
        rows = self._db.query(
            f"SELECT id, state IN ({marks}) AS runs, priority, not_before, deadline, any_time "
            "FROM jobs "
            f"WHERE ended_at IS NULL AND (state = 'queued' OR state IN ({marks})) "
            "ORDER BY priority DESC, position",
            *states,
            *states,
        )
        return tuple(
            (
                row["id"],
                bool(row["runs"]),
                row["priority"],
                row["not_before"],
                row["deadline"],
                bool(row["any_time"]),
            )
            for row in rows
        )

    def devices_of_live(self) -> dict[int, str]:
        """Return the device of each job that has a worker; empty where none was written down."""
        rows = self._db.query("SELECT job_id, device FROM attempts WHERE state = 'live'")
        return {int(row["job_id"]): str(row["device"]) for row in rows}
