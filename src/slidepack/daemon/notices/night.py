"""What happened in a stretch of time, read from the rows: the facts of a digest."""

from typing import Any, Final

import msgspec

from slidepack.daemon.notices.energy import EnergyReport, energy_between
from slidepack.daemon.states import LIVE
from slidepack.daemon.store.database import Database
from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.contract.events import Finished

_NEXT_SHOWN: Final = 3
_ASKED: Final = "asked to yield: "
"""What stands before the cause in the reason of a transition; a daemon that stops gives none."""
_WINDOW: Final = "the window"
"""Begins the cause where the window closed: nobody was given the card."""


class FinishedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was completed."""

    id: int
    name: str
    seconds: float | None
    """Training time over all attempts."""
    loss_before: float | None
    """Held-out loss of the untouched base."""
    loss_after: float | None

    @property
    def improvement(self) -> float:
        """By how much the held-out loss fell; 0 where that was not measured."""
        if self.loss_before is None or self.loss_after is None:
            return 0.0
        return self.loss_before - self.loss_after


class FailedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that failed."""

    id: int
    name: str
    code: str
    """Empty where there is none."""
    why: str


class OpenJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that was at work and is not done."""

    id: int
    name: str
    step: int
    total_steps: int
    eta_seconds: float | None
    """Of training; None where nobody knows it."""
    live: bool
    """Whether a worker is at it now."""
    reason: str
    """Why it waits, where it does."""


class NextJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the queue's head."""

    id: int
    name: str


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """The facts between two moments."""

    since: float
    """Unix time in seconds, as `until`."""
    until: float
    finished: tuple[FinishedJob, ...] = ()
    failed: tuple[FailedJob, ...] = ()
    open: tuple[OpenJob, ...] = ()
    cancelled: int = 0
    yields: tuple[str, ...] = ()
    """For whom or what the GPU was given back, one entry a time."""
    energy: EnergyReport
    next: tuple[NextJob, ...] = ()
    """The head of the queue."""
    queued: int = 0
    """Jobs in the queue, the head included."""
    tonight_seconds: float | None = None
    """How long jobs may run in the coming night; None where no window says."""

    @property
    def eventful(self) -> bool:
        """Whether there is anything to tell."""
        return bool(self.finished or self.failed or self.open or self.yields)


def read_night(
    database: Database, since: float, until: float, tonight_seconds: float | None
) -> Night:
    """Gather the facts from `since` up to, and without, `until`; unix times in seconds."""
    ended = database.query(
        "SELECT id, name, state, reason, error FROM jobs "
        "WHERE ended_at >= ? AND ended_at < ? ORDER BY ended_at",
        since,
        until,
    )
    # Without the hint, SQLite sorts the whole queue.
    head = database.query(
        "SELECT id, name FROM jobs INDEXED BY jobs_waiting WHERE state = 'queued' "
        "AND ended_at IS NULL ORDER BY priority DESC, position LIMIT ?",
        _NEXT_SHOWN,
    )
    counted = database.one("SELECT COUNT(*) AS number FROM jobs WHERE state = 'queued'")
    assert counted is not None
    return Night(
        since=since,
        until=until,
        finished=tuple(_finished(database, row) for row in ended if row["state"] == "completed"),
        failed=tuple(_failed(row) for row in ended if row["state"] == "failed"),
        open=_open(database, since, until),
        cancelled=sum(row["state"] == "cancelled" for row in ended),
        yields=_yields(database, since, until),
        energy=energy_between(database, since, until),
        next=tuple(msgspec.convert(row, NextJob) for row in head),
        queued=int(counted["number"]),
        tonight_seconds=tonight_seconds,
    )


def _finished(database: Database, row: dict[str, Any]) -> FinishedJob:
    told = database.one(
        "SELECT body FROM events WHERE job_id = ? AND type = 'finished' ORDER BY id DESC LIMIT 1",
        row["id"],
    )
    # A worker may die after its result is in place and before it could say so.
    event = None if told is None else msgspec.json.decode(told["body"], type=Finished)
    return FinishedJob(
        id=row["id"],
        name=row["name"],
        seconds=None if event is None else event.seconds,
        loss_before=None if event is None else event.eval_loss_before,
        loss_after=None if event is None else event.eval_loss_after,
    )


def _failed(row: dict[str, Any]) -> FailedJob:
    if row["error"] is None:
        return FailedJob(id=row["id"], name=row["name"], code="", why=row["reason"])
    error = msgspec.json.decode(row["error"], type=ErrorReport)
    return FailedJob(id=row["id"], name=row["name"], code=error.code, why=error.what)


def _open(database: Database, since: float, until: float) -> tuple[OpenJob, ...]:
    rows = database.query(
        "SELECT id, name, state, step, total_steps, eta_seconds, reason FROM jobs "
        "WHERE ended_at IS NULL AND id IN (SELECT job_id FROM attempts WHERE started_at < ? "
        "AND (ended_at IS NULL OR ended_at >= ?)) "
        "ORDER BY priority DESC, position",
        until,
        since,
    )
    return tuple(
        OpenJob(
            id=row["id"],
            name=row["name"],
            step=row["step"],
            total_steps=row["total_steps"],
            eta_seconds=row["eta_seconds"],
            live=row["state"] in LIVE,
            reason=row["reason"],
        )
        for row in rows
    )


def _yields(database: Database, since: float, until: float) -> tuple[str, ...]:
    rows = database.query(
        "SELECT reason FROM transitions WHERE to_state = 'yielding' AND at >= ? AND at < ? "
        "ORDER BY id",
        since,
        until,
    )
    causes = (row["reason"].partition(_ASKED)[2] for row in rows)
    return tuple(cause for cause in causes if cause and not cause.startswith(_WINDOW))
