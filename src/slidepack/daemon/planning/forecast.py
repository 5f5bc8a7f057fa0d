"""How long jobs that are not queued would take, with the machine to themselves."""

import time
from collections.abc import Sequence

import msgspec

from slidepack.daemon.planner.answer import Plan
from slidepack.daemon.planning.picture import Picture, PlannedJob
from slidepack.daemon.planning.queue_reader import QueueReader
from slidepack.daemon.planning.quick_plan import QUICK_ROUNDS, quick_plan
from slidepack.daemon.planning.request import RequestMaker
from slidepack.engine.contract.job import JobSpec

__all__ = ["Forecast", "forecast"]


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What jobs would come to, if nothing else were to run and every hour were open."""

    jobs: int
    steps: int
    """Of the longest."""
    seconds: float | None
    """Of all of them; None where one does not fit, or nothing is known of the machine."""
    one_seconds: float | None
    """Of the longest alone."""
    most_lanes: int
    """Of one device, at once."""
    devices: int
    """On which they run."""
    one_by_one_seconds: float | None
    """Of all of them with no two at once on a device."""
    waiting: str
    """Why nothing is known of the machine; empty where it is."""
    unfit: str
    """What would make the first fit that does not; empty where all do."""

    @property
    def times_one(self) -> float | None:
        """How many times as long as the longest alone."""
        if self.seconds is None or not self.one_seconds:
            return None
        return self.seconds / self.one_seconds


def forecast(
    reader: QueueReader, maker: RequestMaker, specs: Sequence[JobSpec], now: float
) -> Forecast:
    """Plan jobs that are not queued; takes a fraction of a second.

    Args:
        reader: of the machine and of rows.
        maker: of requests, with what was learned of time.
        specs: of the jobs, at least one.
        now: unix seconds.

    Raises:
        SlidepackError: those of `QueueReader.planned`.
    """
    jobs = [reader.planned(f"extra {number}", spec) for number, spec in enumerate(specs, 1)]
    there = reader.picture(now)
    longest = max(jobs, key=lambda job: job.steps * job.spec.batch_size * job.row_tokens)
    plan = _plan(maker, there, jobs)
    unfit = ""
    if plan is not None:
        unfit = next((f"{t.waits} {t.remedy}".strip() for t in plan.tasks if not t.fits), "")
    one = plan if len(jobs) == 1 else _plan(maker, there, [longest])
    known = plan is not None and not unfit
    return Forecast(
        jobs=len(jobs),
        steps=longest.steps,
        seconds=plan.makespan_seconds if plan is not None and known else None,
        one_seconds=one.makespan_seconds if one is not None and known else None,
        most_lanes=max(plan.max_lanes.values(), default=0) if plan is not None else 0,
        devices=len({device for span in plan.spans for device in span.devices}) if plan else 0,
        one_by_one_seconds=plan.one_by_one_seconds if plan is not None and known else None,
        waiting=there.waiting,
        unfit=unfit,
    )


def _plan(maker: RequestMaker, there: Picture, jobs: Sequence[PlannedJob]) -> Plan | None:
    if not there.devices:
        return None
    alone = Picture(
        now=there.now, queue=there.queue, jobs=tuple(jobs), devices=there.devices, windows=()
    )
    request = maker.request(alone, search_rounds=QUICK_ROUNDS)
    return quick_plan(request, time.monotonic)[0]
