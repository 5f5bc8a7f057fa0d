"""A plan as it is shown and followed. Times are seconds on the caller's clock."""

from typing import Literal

import msgspec

from slidepack.daemon.planner.tasks import Window

__all__ = ["LaneSpan", "Options", "Plan", "TaskPlan"]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan is asked for."""

    windows: tuple[Window, ...] = ()
    """When work may run; empty is always."""
    until: float | None = None
    """As much value as possible should be there by then, as the end of tonight's window."""
    seed: int = 0
    search_rounds: int = 200
    """Changes that the local search tries."""
    solver_seconds: float = 5.0
    """For the solver, where there is one."""
    degrees: tuple[int, ...] = (1,)
    """Of how many devices a pack may be: powers of two."""
    least_gain_seconds: float = 60.0
    """What a plan that moves running tasks must be better by."""

    def __post_init__(self) -> None:
        """Refuse what cannot be planned."""
        if any(degree < 1 or degree & (degree - 1) for degree in self.degrees):
            raise ValueError(f"degrees are {self.degrees}; use powers of two")
        if self.search_rounds < 0 or self.solver_seconds < 0.0 or self.least_gain_seconds < 0.0:
            raise ValueError(
                "search_rounds, solver_seconds and least_gain_seconds must be 0 or more"
            )


class LaneSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A task on its devices for a time; a window that ends cuts it into several."""

    task: str
    devices: tuple[str, ...]
    begin: float
    end: float
    ends: bool
    """Whether the task is done at its end."""


class TaskPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a task."""

    task: str
    begin: float | None
    """None where it never begins."""
    end: float | None
    """None where it does not end."""
    devices: tuple[str, ...]
    in_time: bool | None
    """Whether it ends by its deadline; None where it has none."""
    moves: bool
    """Whether it is taken from where it trains now."""
    fits: bool
    """Whether any device can run it."""
    waits: str
    """Why it does not begin at once; empty where it does."""
    remedy: str
    """What would make it fit; empty where it does."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Who runs where and when, and how good that is."""

    now: float
    spans: tuple[LaneSpan, ...]
    """In the order in which they begin: the Gantt chart."""
    tasks: tuple[TaskPlan, ...]
    """As they were given."""
    makespan_seconds: float
    """From now to the end of the last task that ends, closed hours included."""
    open_seconds: float
    """Of it, those in which work may run."""
    bound_seconds: float
    """Open seconds that no plan for these tasks is below."""
    bound_kind: Literal["work", "chain"]
    gap: float
    """By how much the plan may be longer than the best: 0.05 is 5%."""
    one_by_one_seconds: float
    """Open seconds that the same tasks take with one lane a device."""
    packing_gain: float
    """How many times as fast as one by one."""
    packing_pays: bool
    verdict: str
    """What packing buys, in words."""
    solver_bound_seconds: float | None
    """The bound that the solver proved; None where it was not asked, or proved none."""
    method: Literal["greedy", "solver"]
    max_lanes: dict[str, int]
    """Most lanes at once in the plan, by device."""
    simulated: int
    """Plans that were compared."""

    @property
    def moved(self) -> tuple[str, ...]:
        """Tasks that are taken from where they train now."""
        return tuple(task.task for task in self.tasks if task.moves)
