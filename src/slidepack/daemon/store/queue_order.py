"""The places of jobs in the queue."""

import itertools
from collections.abc import Sequence

from slidepack.daemon.store.database import Database

__all__ = ["place_jobs"]


def place_jobs(database: Database, job_ids: Sequence[int], before: int | None) -> None:
    """Put jobs, in this order, right before another one, with its priority, or at the end.

    Only the moved jobs are written, between their neighbours' positions; all others are numbered
    anew only where no number is left between two of them.

    Args:
        database: of the queue.
        job_ids: jobs that have not ended, each once.
        before: none of them, and not ended; None is the end of the queue.
    """
    with database.transaction():
        found = _between(database, job_ids, before) or _after_renumbering(database, job_ids, before)
        priority, positions = found
        for job_id, position in zip(job_ids, positions, strict=True):
            database.execute(
                "UPDATE jobs SET priority = ?, position = ? WHERE id = ?",
                priority,
                position,
                job_id,
            )


def _between(
    database: Database, job_ids: Sequence[int], before: int | None
) -> tuple[int, list[float]] | None:
    """Return the priority and the positions that the jobs take; None where there is no room."""
    count = len(job_ids)
    marks = ", ".join("?" * count)
    others = f"ended_at IS NULL AND id NOT IN ({marks})"
    if before is None:
        last = database.one(
            f"SELECT priority, position FROM jobs WHERE {others} "
            "ORDER BY priority, position DESC LIMIT 1",
            *job_ids,
        ) or {"priority": 0, "position": 0.0}
        return int(last["priority"]), [last["position"] + 1.0 + place for place in range(count)]
    after = database.query("SELECT priority, position FROM jobs WHERE id = ?", before)[0]
    high = float(after["position"])
    earlier = database.one(
        f"SELECT MAX(position) AS position FROM jobs WHERE {others} "
        "AND priority = ? AND position <= ? AND id <> ?",
        *job_ids,
        after["priority"],
        high,
        before,
    )
    known = None if earlier is None else earlier["position"]
    low = high - count - 1.0 if known is None else float(known)
    positions = [low + (high - low) * (place + 1) / (count + 1) for place in range(count)]
    borders = [low, *positions, high]
    if any(one >= other for one, other in itertools.pairwise(borders)):
        return None
    return int(after["priority"]), positions


def _after_renumbering(
    database: Database, job_ids: Sequence[int], before: int | None
) -> tuple[int, list[float]]:
    database.execute(
        "UPDATE jobs SET position = ranks.place FROM (SELECT id, row_number() OVER "
        "(ORDER BY priority DESC, position, id) AS place FROM jobs WHERE ended_at IS NULL) "
        "AS ranks WHERE ranks.id = jobs.id"
    )
    found = _between(database, job_ids, before)
    assert found is not None
    return found
