"""The queue and the machine at one moment: all that a plan is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slidepack.daemon.planner.tasks import Window
from slidepack.daemon.store.plan_input import QueueState
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.memory_parts import Machine
from slidepack.engine.rates import Rates
from slidepack.engine.shape import ModelShape

__all__ = ["Picture", "PlannedDevice", "PlannedJob", "job_of", "task_key"]

_PREFIX = "job "


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job, or one that is only thought of."""

    key: str
    """Of its task (`task_key`)."""
    spec: JobSpec
    shape: ModelShape
    steps: int
    """That are left."""
    row_tokens: float
    """Of a row, on average."""
    priority: int = 0
    not_before: float | None = None
    deadline: float | None = None
    promised: bool = False
    any_time: bool = False
    after: tuple[str, ...] = ()
    """Keys of the jobs that must end first."""
    running_on: str = ""
    """Key of its device; empty where it waits."""
    seconds_left: float | None = None
    """As its worker says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """A device, or one that is only thought of."""

    key: str
    name: str
    """Of the card, or `cpu`."""
    machine: Machine
    """What plans may count on."""
    rates: Rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What there is to do, and with what."""

    now: float
    """Unix seconds, as all times."""
    queue: QueueState
    """As it was right before."""
    jobs: tuple[PlannedJob, ...]
    devices: tuple[PlannedDevice, ...]
    windows: tuple[Window, ...]
    unplanned: Mapping[int, str] = field(default_factory=dict)
    """Jobs of which too little is known, and why."""
    waiting: str = ""
    """Why there is no device."""


def task_key(job_id: int) -> str:
    """Return the key of a job's task: it reads well in a sentence."""
    return f"{_PREFIX}{job_id}"


def job_of(key: str) -> int | None:
    """Return the job of a task, or None where it is only thought of."""
    number = key.removeprefix(_PREFIX)
    return int(number) if number != key and number.isdigit() else None
