"""The queue as it is looked at: page by page, filtered, a sweep as one entry.

Ten thousand jobs are no reason to read ten thousand rows: everything here is limited in SQL and
comes from indexes that hold all that is asked for.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from slidepack.daemon.states import JOB_STATES, LIVE, TERMINAL, JobState
from slidepack.daemon.store.database import Database

__all__ = ["WAITING", "Entry", "QueueFilter", "QueueList", "QueuePage"]

WAITING: Final[tuple[JobState, ...]] = ("draft", "queued", "paused")
"""States of jobs that have no worker and may get one."""
_SIGN: Final = "COALESCE(wanted, state)"
_BETWEEN: Final = 30
"""Code of a control character that nobody types, between two texts that are searched at once."""


class QueueFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs are looked at."""

    states: tuple[JobState, ...] = JOB_STATES
    text: str = ""
    """In the job's name, or its model's id, or the number of the job; letter case does not
    matter, as `str.casefold` has it."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a list: a job, or all members of a sweep that the list has."""

    job_ids: tuple[int, ...]
    """In the list's order."""
    states: tuple[str, ...]
    """Of the jobs, in the same order: what is wanted of one, else its state."""
    sweep_id: int | None
    """None for a job that is alone, or the only one here of its sweep."""


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list."""

    entries: tuple[Entry, ...]
    total: int
    """Entries of the whole list."""
    next_job: int | None
    """The first job behind this page."""


class QueueList:
    """Reads of the queue's page. Any thread may use it."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def live(self, wanted: QueueFilter) -> QueuePage:
        """Return the jobs that have a worker, in the queue's order, each as an entry."""
        condition, values = _condition(wanted, LIVE)
        rows = self._db.values(
            f"SELECT id, {_SIGN} FROM jobs WHERE ended_at IS NULL AND {condition} "
            "ORDER BY priority DESC, position",
            *values,
        )
        entries = tuple(Entry(job_ids=(job,), states=(sign,), sweep_id=None) for job, sign in rows)
        return QueuePage(entries=entries, total=len(entries), next_job=None)

    def waiting(self, wanted: QueueFilter, limit: int, offset: int = 0) -> QueuePage:
        """Return jobs that wait or are paused, in the queue's order; a sweep stands where the
        first of its members does."""
        return self._page(
            wanted, WAITING, "IS NULL", "priority DESC, position", limit=limit, offset=offset
        )

    def ended(self, wanted: QueueFilter, limit: int, offset: int = 0) -> QueuePage:
        """Return jobs that have ended, the newest first; a sweep stands where the newest of its
        members does."""
        return self._page(
            wanted, TERMINAL, "IS NOT NULL", "ended_at DESC, id DESC", limit=limit, offset=offset
        )

    def _page(
        self,
        wanted: QueueFilter,
        states: Sequence[JobState] | frozenset[JobState],
        ended: str,
        order: str,
        *,
        limit: int,
        offset: int,
    ) -> QueuePage:
        condition, values = _condition(wanted, states)
        listed = f"ended_at {ended} AND {condition}"
        first = (
            f"(SELECT other.id FROM jobs AS other WHERE other.sweep_id = jobs.sweep_id "
            f"AND {listed} ORDER BY {order} LIMIT 1)"
        )
        heads = self._db.values(
            f"SELECT id, sweep_id FROM jobs WHERE {listed} "
            f"AND (sweep_id IS NULL OR id = {first}) ORDER BY {order} LIMIT ? OFFSET ?",
            *values,
            *values,
            limit + 1,
            offset,
        )
        singles, sweeps = self._db.values(
            f"SELECT (SELECT COUNT(*) FROM jobs WHERE {listed} AND sweep_id IS NULL), "
            "(SELECT COUNT(*) FROM sweeps WHERE EXISTS "
            f"(SELECT 1 FROM jobs WHERE sweep_id = sweeps.id AND {listed}))",
            *values,
            *values,
        )[0]
        entries = []
        for job_id, sweep_id in heads[:limit]:
            chosen = "id = ?" if sweep_id is None else "sweep_id = ?"
            members = self._db.values(
                f"SELECT id, {_SIGN} FROM jobs WHERE {chosen} AND {listed} ORDER BY {order}",
                job_id if sweep_id is None else sweep_id,
                *values,
            )
            entries.append(
                Entry(
                    job_ids=tuple(job for job, _ in members),
                    states=tuple(sign for _, sign in members),
                    sweep_id=sweep_id if len(members) > 1 else None,
                )
            )
        return QueuePage(
            entries=tuple(entries),
            total=singles + sweeps,
            next_job=heads[limit][0] if len(heads) > limit else None,
        )


def _condition(
    wanted: QueueFilter, states: Sequence[JobState] | frozenset[JobState]
) -> tuple[str, list[Any]]:
    """Return what jobs must meet, as SQL and its values."""
    asked = [state for state in JOB_STATES if state in states and state in wanted.states]
    # A plus keeps SQLite from another index than the one of the list's order.
    condition = f"+state IN ({', '.join('?' * len(asked))})"
    values: list[Any] = list(asked)
    text = wanted.text.strip()
    if not text:
        return condition, values
    # One call a job for both: calls are what a search costs.
    choices = [f"instr(casefold(name || char({_BETWEEN}) || model_id), ?)"]
    values.append(text.casefold())
    number = text.removeprefix("#")
    if number.isascii() and number.isdigit() and len(number) < 19:
        choices.append("id = ?")
        values.append(int(number))
    return f"{condition} AND ({' OR '.join(choices)})", values
