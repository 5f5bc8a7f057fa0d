"""What the planner says the supervisor should do next."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Following", "PlannedStart"]


class PlannedStart(Protocol):
    """A job that the plan begins now."""

    @property
    def job_id(self) -> int:
        """The job."""
        ...

    @property
    def device(self) -> str:
        """Where it begins: `cpu`, or torch's name of the card."""
        ...


class Following(Protocol):
    """The plan as it is now: `planning.replanner.Replanner`."""

    def starts(self, now: float) -> Sequence[PlannedStart] | None:
        """Return what begins now, in order; None while there is no plan to follow."""
        ...

    def why(self, job_id: int) -> str:
        """Return why a job waits by the plan; empty where that is not known."""
        ...

    def changed(self) -> None:
        """Take note that the queue or the devices are no longer what was planned for."""
        ...
