"""A job's series thinned out to what a chart can show, with nothing extreme left out."""

from typing import Final

import msgspec

from slidepack.daemon.store.database import Database

__all__ = ["MAX_POINTS", "METRICS", "Band", "Series", "SeriesStore"]

MAX_POINTS: Final = 10_000
_BEYOND: Final = 1 << 62
METRICS: Final = ("loss", "grad_norm", "tokens_per_second")
_BANDS: Final = ", ".join(f"MIN({name}), MAX({name}), AVG({name})" for name in METRICS)
_POINT: Final = (
    f"SELECT COUNT(*), COUNT(*) - COUNT(loss), AVG(lr), {_BANDS} "
    "FROM progress WHERE job_id = ? AND step BETWEEN ? AND ?"
)


class Band(msgspec.Struct, frozen=True, kw_only=True):
    """One measure, point by point; None where none of a point's steps has a number."""

    low: list[float | None] = msgspec.field(default_factory=list)
    high: list[float | None] = msgspec.field(default_factory=list)
    mean: list[float | None] = msgspec.field(default_factory=list)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a range, in points of as many steps each; the first and last step stay alone."""

    first: int
    """The first step that is stored, of the whole job; 0 where there is none."""
    last: int
    """The last one."""
    last_at: float
    """When that was done, in unix seconds; 0 where there is none."""
    steps_per_point: int
    """1 where nothing is thinned out."""
    step: list[int] = msgspec.field(default_factory=list)
    """The middle step of each point."""
    count: list[int] = msgspec.field(default_factory=list)
    """Steps of each point."""
    no_loss: list[int] = msgspec.field(default_factory=list)
    """Of these, how many have a loss that is no number."""
    lr: list[float] = msgspec.field(default_factory=list)
    """Mean of each point: a schedule has no spikes."""
    loss: Band = msgspec.field(default_factory=Band)
    grad_norm: Band = msgspec.field(default_factory=Band)
    tokens_per_second: Band = msgspec.field(default_factory=Band)


class SeriesStore:
    """Reads the training series of jobs for charts."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def read(self, job_id: int, begin: int | None, end: int | None, points: int) -> Series:
        """Return a job's steps from `begin` to `end`, both included, in about `points` points.

        SQLite makes the points: of 100,000 steps, no more than `points` rows become objects here.

        Args:
            job_id: of the job.
            begin: the first step that is asked for; None for the job's first.
            end: the last one; None for the job's last.
            points: most points, of 3 to `MAX_POINTS`.
        """
        first, last = self._ends(job_id, None, None)
        at = self._db.values("SELECT at FROM progress WHERE job_id = ? AND step = ?", job_id, last)
        start, stop = self._ends(job_id, begin, end)
        most = max(3, min(points, MAX_POINTS))
        width = max(1, -(-(stop - start - 1) // (most - 2)))
        series = Series(
            first=first, last=last, last_at=at[0][0] if at else 0.0, steps_per_point=width
        )
        # Both ends are points of their own, so that a curve begins and ends where it does.
        self._add(series, job_id, start, start)
        for low in range(start + 1, stop, width):
            self._add(series, job_id, low, min(low + width, stop) - 1)
        if stop > start:
            self._add(series, job_id, stop, stop)
        return series

    def _add(self, series: Series, job_id: int, low: int, high: int) -> None:
        # A statement for each point: one for all of them sorts every step first, as SQLite does not
        # see that the steps' groups follow the key, and takes twice as long.
        ((count, no_loss, lr, *values),) = self._db.values(_POINT, job_id, low, high)
        if not count:
            return
        series.step.append((low + high) // 2)
        series.count.append(count)
        series.no_loss.append(no_loss)
        series.lr.append(lr)
        for place, band in enumerate((series.loss, series.grad_norm, series.tokens_per_second)):
            low_value, high_value, mean = values[3 * place : 3 * place + 3]
            band.low.append(low_value)
            band.high.append(high_value)
            band.mean.append(mean)

    def newest_times(self, job_id: int, limit: int) -> list[tuple[int, float]]:
        """Return the newest steps of the newest attempt and when they were done, oldest first.

        Steps that an earlier attempt did, and that are to be done again, are left out.
        """
        rows = self._db.query(
            "SELECT step, at FROM progress WHERE job_id = ? AND step <= "
            "(SELECT step FROM jobs WHERE id = ?) AND attempt = "
            "(SELECT MAX(number) FROM attempts WHERE job_id = ?) ORDER BY step DESC LIMIT ?",
            job_id,
            job_id,
            job_id,
            limit,
        )
        return [(row["step"], row["at"]) for row in reversed(rows)]

    def _ends(self, job_id: int, begin: int | None, end: int | None) -> tuple[int, int]:
        """Return the first and the last step that are stored in a range; zeros where none is."""
        # Two statements: SQLite finds a lone MIN or MAX at the end of the key, and reads all rows
        # for both at once.
        low, high = (
            self._db.values(
                f"SELECT {which}(step) FROM progress WHERE job_id = ? AND step BETWEEN ? AND ?",
                job_id,
                0 if begin is None else begin,
                _BEYOND if end is None else end,
            )[0][0]
            for which in ("MIN", "MAX")
        )
        return low or 0, high or 0
