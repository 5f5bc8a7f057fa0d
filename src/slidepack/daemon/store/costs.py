"""What was learned of time: measured steps and starts by device and base, and kept promises.

A device is named as its card is (`NVIDIA GeForce RTX 3090`), or `cpu`, so that equal cards share
what was learned; a model is `planner.from_engine.model_key`.
"""

import math
import statistics
import threading
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from slidepack.daemon.planner.cost import Fit, Sample, StepCost, fit, prediction_errors
from slidepack.daemon.store.database import Database, Row

__all__ = ["Accuracy", "CostBook", "Promise"]

_KEPT_OF_LANES: Final = 40
"""Newest steps of each number of lanes: a long job must not push out what others showed."""
_KEPT: Final = 400
"""Newest steps of a device and a base, in all."""
_KEPT_STARTS: Final = 5
_MOST_GROUPS: Final = 16
"""Groups of steps alike that a fit is made of: its time grows with their square."""


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """When a plan says that a job ends."""

    job_id: int
    device: str
    """Name of the card, or `cpu`."""
    model: str
    seat: str
    """The device itself, as in `cuda:0`."""
    end: float
    """Unix seconds."""


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How far off predictions were, of jobs that ended undisturbed."""

    device: str
    model: str
    jobs: int
    median_error: float
    """Relative to the time that was left in truth: 0.1 is 10%."""
    worst_error: float


class CostBook:
    """All reads and writes of measured costs and of predictions. Any thread may use it."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database
        self._lock = threading.Lock()
        self._fits: dict[tuple[str, str], tuple[int, StepCost, Fit]] = {}

    def record_step(self, device: str, model: str, sample: Sample, now: float) -> None:
        """Keep a measured step, and of the older ones those that still tell something.

        Many steps are best recorded in one transaction.

        Args:
            device: name of the card, or `cpu`.
            model: that it trained.
            sample: the step, or the median of some alike.
            now: unix seconds.
        """
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO step_samples (device, model, tokens, lanes, seconds, at) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                device,
                model,
                sample.tokens,
                sample.lanes,
                sample.seconds,
                now,
            )
            self._db.execute(
                "DELETE FROM step_samples WHERE device = ? AND model = ? AND lanes = ? AND id <= "
                "(SELECT id FROM step_samples WHERE device = ? AND model = ? AND lanes = ? "
                "ORDER BY id DESC LIMIT 1 OFFSET ?)",
                *(device, model, sample.lanes, device, model, sample.lanes),
                _KEPT_OF_LANES,
            )
            self._db.execute(
                "DELETE FROM step_samples WHERE device = ? AND model = ? AND id <= "
                "(SELECT id FROM step_samples WHERE device = ? AND model = ? "
                "ORDER BY id DESC LIMIT 1 OFFSET ?)",
                *(device, model, device, model),
                _KEPT,
            )

    def record_start(self, device: str, model: str, seconds: float, now: float) -> None:
        """Keep how long a worker took from its start to its first step.

        Args:
            device: name of the card, or `cpu`.
            model: that it trained.
            seconds: of the start.
            now: unix seconds.
        """
        self._keep("worker_starts", device, model, seconds, now)

    def record_held_up(self, device: str, model: str, seconds: float, now: float) -> None:
        """Keep for how long a pack made no step because of a lane that has done all its steps.

        Args:
            device: name of the card, or `cpu`.
            model: that it trained.
            seconds: from its joining to its end.
            now: unix seconds.
        """
        self._keep("lanes_held_up", device, model, seconds, now)

    def learned(self, device: str, model: str, prior: StepCost) -> Fit | None:
        """Return the cost of a step as measured, or None where nothing was.

        Args:
            device: name of the card, or `cpu`.
            model: that it trains.
            prior: what is assumed where the samples leave something open.
        """
        rows = self._db.query(
            "SELECT id, tokens, lanes, seconds FROM step_samples "
            "WHERE device = ? AND model = ? ORDER BY id",
            device,
            model,
        )
        if not rows:
            return None
        newest = int(rows[-1]["id"])
        with self._lock:
            known = self._fits.get((device, model))
        if known is not None and known[:2] == (newest, prior):
            return known[2]
        found = _fit(rows, prior)
        with self._lock:
            self._fits[device, model] = (newest, prior, found)
        return found

    def start_seconds(self, device: str, model: str) -> float | None:
        """Return the median of the last starts in seconds, or None where there was none."""
        return self._median("worker_starts", device, model)

    def held_up_seconds(self, device: str, model: str) -> float | None:
        """Return the median time in which a lane held its pack up, or None where none has yet."""
        return self._median("lanes_held_up", device, model)

    def _keep(self, table: str, device: str, model: str, seconds: float, now: float) -> None:
        """Keep one more figure, and the newest few before it."""
        with self._db.transaction():
            self._db.execute(
                f"INSERT INTO {table} (device, model, seconds, at) VALUES (?, ?, ?, ?)",
                *(device, model, seconds, now),
            )
            self._db.execute(
                f"DELETE FROM {table} WHERE device = ? AND model = ? AND id <= "
                f"(SELECT id FROM {table} WHERE device = ? AND model = ? "
                "ORDER BY id DESC LIMIT 1 OFFSET ?)",
                *(device, model, device, model),
                _KEPT_STARTS,
            )

    def _median(self, table: str, device: str, model: str) -> float | None:
        rows = self._db.query(
            f"SELECT seconds FROM {table} WHERE device = ? AND model = ?", device, model
        )
        return statistics.median(float(row["seconds"]) for row in rows) if rows else None

    def promise(self, promises: Iterable[Promise], now: float) -> None:
        """Keep predictions made at `now`, in unix seconds; the first one of a job stands."""
        with self._db.transaction():
            for one in promises:
                self._db.execute(
                    "INSERT OR IGNORE INTO promises (job_id, device, model, seat, made_at, end_at) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    *(one.job_id, one.device, one.model, one.seat, now, one.end),
                )

    def promised(self) -> frozenset[int]:
        """Return the jobs whose promises are still open."""
        rows = self._db.query("SELECT job_id FROM promises WHERE ended_at IS NULL")
        return frozenset(int(row["job_id"]) for row in rows)

    def settle(self, job_id: int, ended_at: float, *, undisturbed: bool) -> None:
        """Hold a promise against what happened; one that was settled stays as it is.

        Args:
            job_id: of the job; it need not have a promise.
            ended_at: unix seconds.
            undisturbed: whether it was completed in the attempt of the promise, with nothing new
                beside it.
        """
        self._db.execute(
            "UPDATE promises SET ended_at = ?, undisturbed = ? "
            "WHERE job_id = ? AND ended_at IS NULL",
            *(ended_at, undisturbed, job_id),
        )

    def settle_ended(self) -> None:
        """Settle the promises of all jobs that have ended, or are gone."""
        rows = self._db.query(_ENDED)
        if not rows:
            return
        with self._db.transaction():
            for row in rows:
                self.settle(row["job_id"], row["ended_at"], undisturbed=bool(row["undisturbed"]))

    def accuracy(self, device: str | None = None, model: str | None = None) -> list[Accuracy]:
        """Return how far off predictions were, by device and model; None is any."""
        rows = self._db.query(
            "SELECT device, model, made_at, end_at, ended_at FROM promises "
            "WHERE undisturbed = 1 AND ended_at > made_at "
            "AND (? IS NULL OR device = ?) AND (? IS NULL OR model = ?) ORDER BY device, model",
            *(device, device, model, model),
        )
        errors: dict[tuple[str, str], list[float]] = {}
        for row in rows:
            real = row["ended_at"] - row["made_at"]
            off = abs(row["end_at"] - row["ended_at"]) / real
            errors.setdefault((row["device"], row["model"]), []).append(off)
        return [
            Accuracy(
                device=on,
                model=of,
                jobs=len(found),
                median_error=statistics.median(found),
                worst_error=max(found),
            )
            for (on, of), found in errors.items()
        ]


_ENDED: Final = """
SELECT promises.job_id, COALESCE(jobs.ended_at, promises.made_at) AS ended_at,
    jobs.state = 'completed' AND 1 = (
        SELECT COUNT(*) FROM attempts WHERE attempts.job_id = promises.job_id
    ) AND NOT EXISTS (
        SELECT 1 FROM attempts JOIN jobs AS others ON others.id = attempts.job_id
        WHERE attempts.device = promises.seat AND others.created_at > promises.made_at
        AND attempts.started_at < jobs.ended_at
    ) AS undisturbed
FROM promises LEFT JOIN jobs ON jobs.id = promises.job_id
WHERE promises.ended_at IS NULL AND (jobs.id IS NULL OR jobs.ended_at IS NOT NULL)
"""
"""A job is undisturbed that was completed in one attempt, and beside which nothing ran that came
later than the promise."""


def _fit(rows: Sequence[Row], prior: StepCost) -> Fit:
    """Fit groups of steps alike, and judge the fit by every step."""
    samples = [
        Sample(tokens=row["tokens"], lanes=row["lanes"], seconds=row["seconds"]) for row in rows
    ]
    cost = fit(_grouped(samples), prior).cost
    errors = prediction_errors(cost, samples)
    return Fit(
        cost=cost,
        samples=len(samples),
        median_error=statistics.median(errors),
        worst_error=max(errors),
    )


def _grouped(samples: Sequence[Sample]) -> list[Sample]:
    """Return the medians of steps of about as many tokens and lanes, of the largest groups."""
    groups: dict[tuple[int, int], list[Sample]] = {}
    for sample in samples:
        key = (round(2.0 * math.log2(sample.tokens)), sample.lanes.bit_length())
        groups.setdefault(key, []).append(sample)
    largest = sorted(groups.values(), key=len, reverse=True)[:_MOST_GROUPS]
    return [
        Sample(
            tokens=round(statistics.median(sample.tokens for sample in group)),
            lanes=round(statistics.median(sample.lanes for sample in group)),
            seconds=statistics.median(sample.seconds for sample in group),
        )
        for group in largest
    ]
