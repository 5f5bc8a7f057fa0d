"""The energy that a run has used, as far as it can be measured."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from slidepack.daemon.notices.energy_sources import PackageCounter, Rapl, read_card_counters
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.store.database import Database

QUARTER_SECONDS: Final = 900
"""Length of a row in time: every time zone's full hours are borders of rows."""
_LONGEST_GAP_SECONDS: Final = 30.0
_MOST_WATTS: Final = 3000.0
"""Of one card or package; more means that a counter was reset, not that it wrapped."""
_NO_CARD: Final = "no card reports its power"


class EnergyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Energy in joules. What nobody measured is None, never 0."""

    joules: float | None
    """Sum of what was measured."""
    card_joules: float | None
    """Of the whole card or cards, what they draw at idle included."""
    cpu_joules: float | None
    """Of the whole processor package, other programs included."""
    source: str
    """What the sum is of: `card only`, `card + CPU package`, `CPU package only`, `not measured`."""
    seconds: float
    """How long the run was watched; of a worker that many jobs share, this one's part."""
    card_seconds: float
    """How much of that time the cards were measured."""
    cpu_seconds: float
    note: str
    """What was not measured, and why; empty where everything was."""


class _Reading(msgspec.Struct, frozen=True, kw_only=True):
    """All sources at one moment."""

    monotonic: float
    wall: float
    watts: dict[str, float]
    card_joules: dict[str, float]
    packages: dict[str, PackageCounter]


class EnergyMeter:
    """Integrates over the time in which a worker runs."""

    def __init__(
        self,
        database: Database,
        *,
        rapl: Rapl | None = None,
        card_counters: Callable[[Sequence[Gpu]], dict[str, float]] = read_card_counters,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Bind the database and the sources.

        Args:
            database: where each interval is added up.
            rapl: the processor's counters; None takes this machine's.
            card_counters: the cards' counters in joules, by uuid.
            clock: unix time in seconds.
        """
        self._db = database
        self._rapl = Rapl() if rapl is None else rapl
        self._card_counters = card_counters
        self._clock = clock
        self._last: dict[tuple[int, int], _Reading] = {}

    def sample(
        self,
        monotonic: float,
        job_id: int,
        attempt: int,
        gpus: Sequence[Gpu],
        *,
        share: float = 1.0,
        cpu_share: float = 1.0,
    ) -> None:
        """Add what was used since the last sample of this attempt; about every 5 s.

        A gap of more than 30 s (the machine slept, the daemon was away) adds nothing. Each
        interval is stored at once, so a daemon that dies loses one at most.

        Args:
            monotonic: a monotonic clock in seconds.
            job_id: the job.
            attempt: its live attempt.
            gpus: the cards that the worker uses; none for a run on the CPU.
            share: of the worker's time and cards that is this job's.
            cpu_share: of the processor's energy that is this job's.
        """
        now = _Reading(
            monotonic=monotonic,
            wall=self._clock(),
            watts={_key(g): float(g.power_watts) for g in gpus if g.power_watts is not None},
            card_joules=self._card_counters(gpus) if gpus else {},
            packages=self._rapl.read(),
        )
        last = self._last.get((job_id, attempt))
        self._last = {
            key: reading
            for key, reading in self._last.items()
            if monotonic - reading.monotonic <= _LONGEST_GAP_SECONDS
        }
        self._last[job_id, attempt] = now
        if last is None:
            return
        seconds = now.monotonic - last.monotonic
        # The monotonic clock stands still while the machine sleeps; the other one tells.
        if seconds > 0 and max(seconds, now.wall - last.wall) <= _LONGEST_GAP_SECONDS:
            card = _sum([_card(key, last, now, seconds) for key in map(_key, gpus)])
            cpu = _sum([_package(zone, last, now, seconds) for zone in now.packages])
            self._add(
                job_id,
                attempt,
                int(now.wall // QUARTER_SECONDS),
                seconds * share,
                len(gpus),
                None if card is None else card * share,
                None if cpu is None else cpu * cpu_share,
            )

    def of_job(self, job_id: int) -> EnergyReport:
        """Return what all attempts of a job have used."""
        return self._explained(_report(self._db, "WHERE job_id = ?", job_id))

    def total(self) -> EnergyReport:
        """Return what all jobs have used."""
        return self._explained(_report(self._db, ""))

    def _explained(self, report: EnergyReport) -> EnergyReport:
        """Add why the processor was not measured, as it is on this machine now."""
        if not report.seconds or report.cpu_joules is not None:
            return report
        notes = "; ".join(filter(None, (report.note, self._rapl.problem())))
        return msgspec.structs.replace(report, note=notes)

    def _add(
        self,
        job_id: int,
        attempt: int,
        quarter: int,
        seconds: float,
        cards: int,
        card: float | None,
        cpu: float | None,
    ) -> None:
        self._db.execute(
            "INSERT INTO energy (job_id, attempt, quarter, seconds, cards, card_joules, "
            "card_seconds, cpu_joules, cpu_seconds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (job_id, attempt, quarter) DO UPDATE SET "
            "seconds = seconds + excluded.seconds, cards = MAX(cards, excluded.cards), "
            "card_joules = COALESCE(card_joules + excluded.card_joules, "
            "card_joules, excluded.card_joules), "
            "card_seconds = card_seconds + excluded.card_seconds, "
            "cpu_joules = COALESCE(cpu_joules + excluded.cpu_joules, "
            "cpu_joules, excluded.cpu_joules), "
            "cpu_seconds = cpu_seconds + excluded.cpu_seconds",
            job_id,
            attempt,
            quarter,
            seconds,
            cards,
            card,
            0.0 if card is None else seconds,
            cpu,
            0.0 if cpu is None else seconds,
        )


def energy_between(database: Database, since: float, until: float) -> EnergyReport:
    """Return what all jobs have used between two unix times, whole quarters of an hour."""
    return _report(
        database,
        "WHERE quarter >= ? AND quarter < ?",
        math.floor(since / QUARTER_SECONDS),
        math.ceil(until / QUARTER_SECONDS),
    )


def _report(database: Database, where: str, *values: object) -> EnergyReport:
    row = database.one(
        "SELECT SUM(card_joules) AS card, SUM(cpu_joules) AS cpu, "
        "COALESCE(SUM(seconds), 0.0) AS seconds, "
        "COALESCE(SUM(CASE WHEN cards > 0 THEN seconds ELSE 0.0 END), 0.0) AS with_cards, "
        "COALESCE(SUM(card_seconds), 0.0) AS card_seconds, "
        f"COALESCE(SUM(cpu_seconds), 0.0) AS cpu_seconds FROM energy {where}",
        *values,
    )
    assert row is not None
    card, cpu = row["card"], row["cpu"]
    measured = [value for value in (card, cpu) if value is not None]
    return EnergyReport(
        joules=sum(measured) if measured else None,
        card_joules=card,
        cpu_joules=cpu,
        source=_source(card, cpu),
        seconds=row["seconds"],
        card_seconds=row["card_seconds"],
        cpu_seconds=row["cpu_seconds"],
        note=_note(row),
    )


def _source(card: float | None, cpu: float | None) -> str:
    if card is None:
        return "not measured" if cpu is None else "CPU package only"
    return "card only" if cpu is None else "card + CPU package"


def _note(row: dict[str, Any]) -> str:
    notes = []
    if row["with_cards"] and row["card"] is None:
        notes.append(_NO_CARD)
    elif row["with_cards"] - row["card_seconds"] > _LONGEST_GAP_SECONDS:
        share = row["card_seconds"] / row["with_cards"]
        notes.append(f"cards measured for {share:.0%} of the time")
    if row["cpu"] is not None and row["seconds"] - row["cpu_seconds"] > _LONGEST_GAP_SECONDS:
        notes.append(f"CPU measured for {row['cpu_seconds'] / row['seconds']:.0%} of the time")
    return "; ".join(notes)


def _card(key: str, last: _Reading, now: _Reading, seconds: float) -> float | None:
    """Return a card's joules in an interval: its counter's, or its power's mean times the time."""
    if key in last.card_joules and key in now.card_joules:
        used = now.card_joules[key] - last.card_joules[key]
        # The driver starts from 0 when it is loaded again.
        if 0 <= used <= _MOST_WATTS * seconds:
            return used
    if key in last.watts and key in now.watts:
        return (last.watts[key] + now.watts[key]) / 2 * seconds
    return None


def _package(zone: str, last: _Reading, now: _Reading, seconds: float) -> float | None:
    before = last.packages.get(zone)
    if before is None:
        return None
    counter = now.packages[zone]
    used = counter.joules - before.joules
    if used < 0:
        used += counter.wraps_at
    return used if 0 <= used <= _MOST_WATTS * seconds else None


def _sum(parts: Sequence[float | None]) -> float | None:
    """Return the sum, or None where there is nothing or a part is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _key(gpu: Gpu) -> str:
    return gpu.uuid or gpu.pci_address or f"{gpu.vendor}-{gpu.index}"
