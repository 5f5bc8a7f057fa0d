"""What the planner's process is asked, as one JSON value."""

import msgspec

from slidepack.daemon.planner.answer import Options
from slidepack.daemon.planner.tasks import Device, Task

__all__ = ["PlanRequest"]


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks, devices and options; the answer is a `Plan`."""

    tasks: tuple[Task, ...]
    devices: tuple[Device, ...]
    now: float
    options: Options = Options()
    seconds: float = 10.0
    """After which the best plan so far is the answer; the solver's time is part of it."""
