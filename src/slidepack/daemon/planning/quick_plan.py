"""The greedy plan, in the time that nobody notices."""

from collections.abc import Callable
from typing import Final

from slidepack.daemon.planner.answer import Plan
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planner.request import PlanRequest

__all__ = ["QUICK_ROUNDS", "quick_plan"]

QUICK_ROUNDS: Final = 40
"""Changes that its search tries."""
_SECONDS: Final = 0.15
_SECONDS_A_TASK: Final = 0.0015
"""For a long queue: to try out one plan takes time for each task."""
_MOST_SECONDS: Final = 1.0
"""Meanwhile every page waits its turn; what is left to try is the solver's, in its own process."""


def quick_plan(request: PlanRequest, monotonic: Callable[[], float]) -> tuple[Plan, bool]:
    """Return a plan, and whether time was enough to try out all that was meant to be tried.

    Args:
        request: what is planned.
        monotonic: seconds by a clock that only goes forward.
    """
    wanted = max(_SECONDS, _SECONDS_A_TASK * len(request.tasks))
    until = monotonic() + min(_MOST_SECONDS, wanted)
    plan = make_plan(
        request.tasks,
        request.devices,
        request.now,
        request.options,
        seconds_left=lambda: until - monotonic(),
    )
    return plan, monotonic() < until
