"""Full fine-tunings as the planner sees them: how long a step takes on each device."""

from typing import Final

import msgspec

from slidepack.daemon.planner.cost import StepCost
from slidepack.daemon.planner.from_engine import full_task, guessed_startup_seconds
from slidepack.daemon.planner.tasks import Task
from slidepack.daemon.planning.picture import PlannedDevice, PlannedJob
from slidepack.daemon.store.costs import CostBook
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.memory import plan_run
from slidepack.engine.memory_parts import Machine
from slidepack.engine.rates import Rates
from slidepack.engine.timing import step_time

__all__ = ["FullRuns", "full_key"]

_SHORTEST: Final = 16
"""Tokens of the shortest `max_seq_len`."""
_WEIGHT_BYTES: Final = 2
_KEPT: Final = 1000
"""Predictions that are remembered."""


def full_key(spec: JobSpec) -> str:
    """Return what full fine-tunings must have in common to share what was learned of time."""
    return f"{spec.base.content_hash}|full"


class FullRuns:
    """Makes tasks of full fine-tunings; remembers the engine's plans, which take long to make."""

    def __init__(self, book: CostBook) -> None:
        """Bind what was learned."""
        self._book = book
        self._known: dict[tuple[bytes, Machine, Rates], float | str] = {}

    def task(self, job: PlannedJob, devices: tuple[PlannedDevice, ...]) -> Task:
        """Return a full fine-tuning on the devices that it fits."""
        seconds: dict[str, float] = {}
        refusals: list[str] = []
        for device in devices:
            found = self._seconds(job, device)
            if isinstance(found, str):
                refusals.append(found)
            else:
                seconds[device.key] = found
        if job.running_on and job.seconds_left:
            seconds[job.running_on] = job.seconds_left / job.steps
        return full_task(
            job.key,
            steps=job.steps,
            step_seconds=seconds,
            startup_seconds=self._startup(job, devices),
            refusal=refusals[0] if refusals else "",
        )

    def _seconds(self, job: PlannedJob, device: PlannedDevice) -> float | str:
        """Return the seconds of a step, or why the job does not fit the device."""
        longest = min(job.spec.max_seq_len, job.shape.max_positions)
        usual = max(_SHORTEST, min(longest, round(job.row_tokens)))
        key = (
            msgspec.json.encode((job.spec.base, job.spec.method, job.spec.optim))
            + f"{job.spec.batch_size} {longest} {usual}".encode(),
            device.machine,
            device.rates,
        )
        if key not in self._known:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[key] = _predicted(job, device, usual)
        known = self._known[key]
        if isinstance(known, str):
            return known
        tokens = job.spec.batch_size * usual
        prior = StepCost(floor_seconds=0.0, token_seconds=known / tokens)
        fit = self._book.learned(device.name, full_key(job.spec), prior)
        return known if fit is None else fit.cost.seconds(tokens, 1)

    def _startup(self, job: PlannedJob, devices: tuple[PlannedDevice, ...]) -> float:
        names = {device.name for device in devices}
        measured = [self._book.start_seconds(name, full_key(job.spec)) for name in sorted(names)]
        known = [seconds for seconds in measured if seconds is not None]
        return (
            max(known) if known else guessed_startup_seconds(_WEIGHT_BYTES * job.shape.total_params)
        )


def _predicted(job: PlannedJob, device: PlannedDevice, row_tokens: int) -> float | str:
    try:
        plan = plan_run(job.spec, job.shape, device.machine)
    except SlidepackError as error:
        return " ".join(part for part in (f"{error.report.why}.", error.report.fix) if part)
    # Memory is there for the longest rows; time goes by the usual ones.
    usual = msgspec.structs.replace(job.spec, max_seq_len=row_tokens)
    return step_time(usual, job.shape, plan, device.rates).seconds
