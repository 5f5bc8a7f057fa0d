"""What the planner is compared with: one adapter a job, in several ways. For the benchmark."""

import msgspec

from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.schedule import Strategy
from slidepack.daemon.planner.simulate import simulate

__all__ = ["Baseline", "baseline"]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """A plan of another kind, and how long it takes."""

    name: str
    seconds: float


def baseline(instance: Instance, name: str) -> Baseline:
    """Return one of `min-gpu`, `max-gpu` and `lpt`.

    `min-gpu` runs an adapter a job on the fewest devices, as jobs come; `lpt` the longest first;
    `max-gpu` an adapter a job on as many devices as can work together.

    Raises:
        ValueError: there is no such baseline.
    """
    tasks = range(len(instance.tasks))
    degree = max((seat.degree for seat in instance.seats), default=1)
    match name:
        case "min-gpu":
            strategy = Strategy(order=tuple(tasks), max_lanes=1)
        case "max-gpu":
            strategy = Strategy(order=tuple(tasks), max_lanes=1, degree=degree)
        case "lpt":
            longest = sorted(tasks, key=lambda task: -instance.best_solo_seconds(task))
            strategy = Strategy(order=tuple(longest), max_lanes=1)
        case _:
            raise ValueError(f"{name} is no baseline; use min-gpu, max-gpu or lpt")
    return Baseline(name=name, seconds=simulate(instance, strategy).makespan)
