"""Another machine, queue or policy that a plan is asked for: what would be if."""

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from slidepack.daemon.planner.cards import CARDS, free_bytes
from slidepack.daemon.planner.tasks import Window as OpenHours
from slidepack.daemon.planning.picture import Picture, PlannedDevice, PlannedJob, job_of
from slidepack.daemon.policy.rules import Window
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.memory_parts import Machine
from slidepack.engine.rates import rates_of

__all__ = ["ExtraDevice", "ExtraJobs", "JobPlanner", "WhatIf", "changed_picture"]

_MOST_DEVICES: Final = 64
_MOST_JOBS: Final = 1000
_MOST_MEMORY_GB: Final = 100_000.0
_RAM_BYTES: Final = 32 << 30
"""Where the machine itself has no device to tell."""


class _Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is asked."""


class ExtraDevice(_Asked, frozen=True, kw_only=True):
    """Devices that are not there."""

    like: str = ""
    """Key of a device that is there, as `cuda:0`."""
    name: str = ""
    """Of a card, as `RTX 4090`; one that nobody knows needs its memory, and its speed is a guess.
    """
    memory_gb: float | None = None
    """Free for training, in units of 1e9 bytes; None is that of the card."""
    count: int = 1

    def __post_init__(self) -> None:
        """Refuse what names no device."""
        if bool(self.like) == bool(self.name):
            raise ValueError("a device needs either like or name")
        if self.name and self.memory_gb is None and self.name not in CARDS:
            raise ValueError(
                f"the memory of {self.name!r} is not known; give memory_gb, or one of "
                f"{', '.join(CARDS)}"
            )
        if self.memory_gb is not None and not 0 < self.memory_gb <= _MOST_MEMORY_GB:
            raise ValueError(f"memory_gb is {self.memory_gb:g}; use above 0")
        if not 1 <= self.count <= _MOST_DEVICES:
            raise ValueError(f"count of devices is {self.count}; use 1 to {_MOST_DEVICES}")


class ExtraJobs(_Asked, frozen=True, kw_only=True):
    """Jobs that are not queued, like one that is or was."""

    like: int
    """Id of a job; what is left out is as there."""
    count: int = 1
    rank: int | None = None
    batch_size: int | None = None
    max_seq_len: int | None = None
    rows: int | None = None
    """That are trained."""
    row_tokens: float | None = None
    """Of a row, on average."""
    epochs: float | None = None
    steps: int | None = None
    priority: int = 0
    deadline: float | None = None
    """Unix time in seconds by which each should be done."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not 1 <= self.count <= _MOST_JOBS:
            raise ValueError(f"count of jobs is {self.count}; use 1 to {_MOST_JOBS}")
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps are both given; give one")
        if self.rows is not None and self.rows < 1:
            raise ValueError(f"rows is {self.rows}; use 1 or more")
        if self.row_tokens is not None and not 1 <= self.row_tokens < math.inf:
            raise ValueError(f"row_tokens is {self.row_tokens:g}; use 1 or more")


class WhatIf(_Asked, frozen=True, kw_only=True):
    """What would be different. Nothing of it is done."""

    devices: tuple[ExtraDevice, ...] = ()
    without_devices: tuple[str, ...] = ()
    """Keys of devices to do without."""
    jobs: tuple[ExtraJobs, ...] = ()
    without_jobs: tuple[int, ...] = ()
    """Ids of jobs to do without."""
    windows: tuple[Window, ...] | None = None
    """Instead of those of the policy; empty is any time."""

    def __post_init__(self) -> None:
        """Refuse more than can be planned while somebody waits."""
        if sum(extra.count for extra in self.devices) > _MOST_DEVICES:
            raise ValueError(f"more than {_MOST_DEVICES} devices")
        if sum(extra.count for extra in self.jobs) > _MOST_JOBS:
            raise ValueError(f"more than {_MOST_JOBS} jobs")


JobPlanner = Callable[[str, JobSpec, int | None, float | None], PlannedJob]
"""Plans a job by key, specification, rows and tokens of a row."""


def changed_picture(
    picture: Picture,
    asked: WhatIf,
    *,
    hours: tuple[OpenHours, ...],
    spec_of: Callable[[int], JobSpec],
    planned: JobPlanner,
) -> Picture:
    """Return the picture as it would be.

    Args:
        picture: as it is.
        asked: the differences.
        hours: of the windows that are asked for, or of the policy.
        spec_of: reads a job's specification; raises RUN-NOT-FOUND where there is none.
        planned: plans a job that is not queued.

    Raises:
        SlidepackError: DAEMON-REQUEST-INVALID where something that is named does not exist, and
            what `spec_of` and `planned` raise.
    """
    gone = set(asked.without_devices)
    _require_known("device", gone, [device.key for device in picture.devices])
    jobs_gone = set(asked.without_jobs)
    _require_known("job", jobs_gone, [job_id for job_id, *_ in picture.queue])
    devices = [device for device in picture.devices if device.key not in gone]
    for number, extra in enumerate(asked.devices, 1):
        devices += _devices(extra, number, picture.devices)
    jobs = [
        _without(job, gone, jobs_gone) for job in picture.jobs if job_of(job.key) not in jobs_gone
    ]
    for number, wanted in enumerate(asked.jobs, 1):
        jobs += _jobs(wanted, number, spec_of, planned)
    return Picture(
        now=picture.now,
        queue=picture.queue,
        jobs=tuple(jobs),
        devices=tuple(devices),
        windows=hours,
        unplanned={
            job_id: why for job_id, why in picture.unplanned.items() if job_id not in jobs_gone
        },
        waiting=picture.waiting or ("every device is left out" if gone else ""),
    )


def _without(job: PlannedJob, devices: set[str], jobs: set[int]) -> PlannedJob:
    """Return a job where some devices and jobs are not there: it begins anew, and waits for less.

    A job that trained on such a device goes on from its checkpoint on another.
    """
    after = tuple(key for key in job.after if job_of(key) not in jobs)
    left = job.running_on not in devices
    return PlannedJob(
        key=job.key,
        spec=job.spec,
        shape=job.shape,
        steps=job.steps,
        row_tokens=job.row_tokens,
        priority=job.priority,
        not_before=job.not_before,
        deadline=job.deadline,
        promised=job.promised,
        any_time=job.any_time,
        after=after,
        running_on=job.running_on if left else "",
        seconds_left=job.seconds_left if left else None,
    )


def _devices(
    extra: ExtraDevice, number: int, there: Sequence[PlannedDevice]
) -> list[PlannedDevice]:
    if extra.like:
        _require_known("device", {extra.like}, [device.key for device in there])
        model = next(device for device in there if device.key == extra.like)
        machine, rates, name = model.machine, model.rates, model.name
    else:
        host = there[0].machine if there else None
        machine = Machine(
            device="cuda:0",
            device_free_bytes=CARDS[extra.name].free_bytes if extra.name in CARDS else 0,
            ram_available_bytes=host.ram_available_bytes if host else _RAM_BYTES,
            cpu_threads=host.cpu_threads if host else 1,
        )
        name, rates = extra.name, rates_of(extra.name, cpu_threads=machine.cpu_threads)
        if rates.estimated and name in CARDS:
            rates = msgspec.structs.replace(rates, compute_flops=CARDS[name].flops)
    if extra.memory_gb is not None:
        machine = msgspec.structs.replace(machine, device_free_bytes=free_bytes(extra.memory_gb))
    return [
        PlannedDevice(
            key=f"extra {number}.{copy}" if extra.count > 1 else f"extra {number}",
            name=name,
            machine=machine,
            rates=rates,
        )
        for copy in range(1, extra.count + 1)
    ]


def _jobs(
    wanted: ExtraJobs, number: int, spec_of: Callable[[int], JobSpec], planned: JobPlanner
) -> list[PlannedJob]:
    spec = _spec(wanted, spec_of(wanted.like))
    first = planned(f"extra {number}", spec, wanted.rows, wanted.row_tokens)
    return [
        PlannedJob(
            key=f"extra {number}.{copy}" if wanted.count > 1 else first.key,
            spec=spec,
            shape=first.shape,
            steps=first.steps,
            row_tokens=first.row_tokens,
            priority=wanted.priority,
            deadline=wanted.deadline,
        )
        for copy in range(1, wanted.count + 1)
    ]


def _spec(wanted: ExtraJobs, spec: JobSpec) -> JobSpec:
    changes: dict[str, object] = {
        name: value
        for name in ("batch_size", "max_seq_len")
        if (value := getattr(wanted, name)) is not None
    }
    if wanted.epochs is not None:
        changes |= {"epochs": wanted.epochs, "steps": 0}
    if wanted.steps is not None:
        changes |= {"epochs": 0.0, "steps": wanted.steps}
    try:
        if wanted.rank is not None:
            if not isinstance(spec.method, LoraMethod):
                raise ValueError(f"job {wanted.like} is a full fine-tuning and has no rank")
            changes["method"] = LoraMethod(
                **(msgspec.structs.asdict(spec.method) | {"rank": wanted.rank})
            )
        # A struct's `replace` checks nothing.
        return JobSpec(**(msgspec.structs.asdict(spec) | changes))
    except ValueError as error:
        raise _refused(str(error)) from error


def _require_known(what: str, named: set[str] | set[int], known: Sequence[str | int]) -> None:
    for name in sorted(named - set(known), key=str):
        there = ", ".join(map(str, known)) or "none"
        raise _refused(f"there is no {what} {name}; there is {there}")


def _refused(why: str) -> SlidepackError:
    return SlidepackError(
        "DAEMON-REQUEST-INVALID",
        "What was asked for cannot be planned.",
        why=why,
        fix="Change the value named.",
    )
