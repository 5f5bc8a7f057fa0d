"""Makes the planner's request of a picture, with what was learned of time."""

from collections.abc import Sequence
from typing import Final

import msgspec

from slidepack.daemon.planner.answer import Options, Plan
from slidepack.daemon.planner.from_engine import (
    base_on_device,
    lora_task,
    memory_to_plan,
    model_key,
)
from slidepack.daemon.planner.request import PlanRequest
from slidepack.daemon.planner.tasks import BaseOnDevice, Device, Task, Window
from slidepack.daemon.planning.full_runs import FullRuns, full_key
from slidepack.daemon.planning.open_hours import is_open
from slidepack.daemon.planning.picture import Picture, PlannedDevice, PlannedJob
from slidepack.daemon.store.costs import CostBook
from slidepack.engine.contract.job import FullMethod, JobSpec, LoraMethod

__all__ = ["RequestMaker", "cost_key", "is_hard"]

_STAY_SECONDS: Final = 1e9
"""So much a move costs that is not to be: the checkpoint of a full fine-tuning is its whole model,
and of a run that has reported no step nobody knows what it would lose."""
_MOVE_SECONDS: Final = 15.0
"""Checkpoint, and rows that are read again; what a worker's start takes is counted besides."""
_LEAST_GAIN_SECONDS: Final = 300.0
"""That a plan with moves must be better by: predictions are not so good that less would be sure."""
_VALUE_OF_PRIORITY: Final = 8.0
_MOST_RANKS: Final = 6
"""A solver's numbers must not lie too far apart."""
_MANY_TASKS: Final = 8
"""Waiting LoRA jobs from which on the solver may find more than the greedy plan."""


def is_hard(request: PlanRequest, plan: Plan) -> bool:
    """Return whether the solver may find more than a greedy plan has.

    Where many jobs wait for several devices, and where a night is too short for all jobs.
    """
    waiting = [task for task in request.tasks if task.full is None and not task.running_on]
    if len(waiting) < _MANY_TASKS:
        return False
    until = request.options.until
    left = until is not None and any(
        task.fits and (task.end is None or task.end > until) for task in plan.tasks
    )
    return left or len(request.devices) > 1


def cost_key(spec: JobSpec, device: str) -> str:
    """Return the model under which steps and starts of a job are kept in the book of costs.

    Args:
        spec: of the job.
        device: on which it trains, `cpu` or `cuda:N`.
    """
    return full_key(spec) if isinstance(spec.method, FullMethod) else model_key(spec, device)


class RequestMaker:
    """Turns pictures into requests. One thread at a time may use it."""

    def __init__(self, book: CostBook, *, max_lanes: int = 0) -> None:
        """Bind what was learned.

        Args:
            book: of measured costs.
            max_lanes: most lanes at once on a device; 1 packs nothing, 0 leaves it to the memory.
        """
        self._book = book
        self._max_lanes = max_lanes
        self._full = FullRuns(book)

    def request(
        self, picture: Picture, *, search_rounds: int = 200, solver_seconds: float = 5.0
    ) -> PlanRequest:
        """Return what the planner is asked.

        Args:
            picture: of the queue and the machine.
            search_rounds: changes that the local search tries.
            solver_seconds: for the solver.
        """
        devices = picture.devices
        if not devices:
            # What a task is called by depends on the device, and without one nothing begins.
            return PlanRequest(tasks=(), devices=(), now=picture.now)
        kind = devices[0].machine.device
        windows, opens = _hours(picture)
        values = _values(picture.jobs)
        return PlanRequest(
            tasks=tuple(
                self._task(job, devices, kind, opens, values[job.priority]) for job in picture.jobs
            ),
            devices=tuple(self._device(device, picture.jobs, kind) for device in devices),
            now=picture.now,
            options=Options(
                windows=windows,
                until=_tonight(windows, picture.now),
                search_rounds=search_rounds,
                solver_seconds=solver_seconds,
                least_gain_seconds=_LEAST_GAIN_SECONDS,
            ),
        )

    def _task(
        self,
        job: PlannedJob,
        devices: tuple[PlannedDevice, ...],
        kind: str,
        opens: float | None,
        value: float,
    ) -> Task:
        if isinstance(job.spec.method, LoraMethod):
            task = lora_task(
                job.key,
                job.spec,
                job.shape,
                steps=job.steps,
                row_tokens=job.row_tokens,
                device=kind,
            )
        else:
            task = self._full.task(job, devices)
        earliest = job.not_before
        if opens is not None and not job.any_time and not job.running_on:
            earliest = max(opens, earliest or opens)
        return msgspec.structs.replace(
            task,
            priority=job.priority,
            value=value,
            not_before=earliest,
            deadline=job.deadline,
            promised=job.promised,
            after=job.after,
            running_on=(job.running_on,) if job.running_on else (),
            move_seconds=_move_seconds(job),
        )

    def _device(self, device: PlannedDevice, jobs: tuple[PlannedJob, ...], kind: str) -> Device:
        by_model: dict[str, list[PlannedJob]] = {}
        for job in jobs:
            if isinstance(job.spec.method, LoraMethod):
                # As the tasks are called, also where this device holds the base in another form.
                by_model.setdefault(model_key(job.spec, kind), []).append(job)
        found = {model: self._base(device, sharing) for model, sharing in by_model.items()}
        return Device(
            key=device.key,
            name=device.name,
            memory_bytes=memory_to_plan(device.machine),
            max_lanes=self._max_lanes,
            bases={model: base for model, base in found.items() if base is not None},
        )

    def _base(self, device: PlannedDevice, jobs: list[PlannedJob]) -> BaseOnDevice | None:
        method = jobs[0].spec.method
        assert isinstance(method, LoraMethod)
        model = model_key(jobs[0].spec, device.machine.device)
        base = base_on_device(
            method,
            jobs[0].shape,
            device.machine,
            device.rates,
            sequence=max(1, round(sum(job.row_tokens for job in jobs) / len(jobs))),
            startup_seconds=self._book.start_seconds(device.name, model),
            lane_seconds_once=self._book.held_up_seconds(device.name, model),
        )
        if base is None:
            return None
        fit = self._book.learned(device.name, model, base.cost)
        return base if fit is None else msgspec.structs.replace(base, cost=fit.cost)


def _move_seconds(job: PlannedJob) -> float:
    """Return what it costs to take a job from where it trains."""
    can = isinstance(job.spec.method, LoraMethod) and job.seconds_left is not None
    return _MOVE_SECONDS if can else _STAY_SECONDS


def _values(jobs: Sequence[PlannedJob]) -> dict[int, float]:
    """Return what a job of each priority is worth by the morning: a few times the next lower's."""
    found = sorted({job.priority for job in jobs})
    return {
        priority: _VALUE_OF_PRIORITY ** min(rank, _MOST_RANKS)
        for rank, priority in enumerate(found)
    }


def _tonight(windows: Sequence[Window], now: float) -> float | None:
    """Return when the window that is open, or opens next, ends; None where none ever does."""
    return min((window.end for window in windows if window.end > now), default=None)


def _hours(picture: Picture) -> tuple[tuple[Window, ...], float | None]:
    """Return the windows, and before when no job begins that minds them, where there are none.

    While they are closed, jobs that mind no window are planned without any, and the others from
    the next opening on. That hours close again later is then left to the policy.
    """
    windows, now = picture.windows, picture.now
    if is_open(windows, now) or not any(job.any_time for job in picture.jobs):
        return windows, None
    opening = [window.begin for window in windows if window.begin > now]
    return (), min(opening, default=now + _STAY_SECONDS)
