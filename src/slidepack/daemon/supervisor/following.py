"""What the planner says the supervisor should do next."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Following", "PlannedMove", "PlannedStart"]


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


class PlannedMove(Protocol):
    """A running job that is to leave where it is."""

    @property
    def job_id(self) -> int:
        """The job."""
        ...

    @property
    def why(self) -> str:
        """What its user reads."""
        ...


class Following(Protocol):
    """The plan as it is now: `planning.replanner.Replanner`."""

    def starts(self, now: float) -> Sequence[PlannedStart] | None:
        """Return what begins now, in order; None while there is no plan to follow."""
        ...

    def moves(self, now: float) -> Sequence[PlannedMove]:
        """Return the running jobs that are to leave where they are, each once."""
        ...

    def why(self, job_id: int) -> str:
        """Return why a job waits by the plan; empty where that is not known."""
        ...

    def changed(self) -> None:
        """Take note that the queue or the devices are no longer what was planned for."""
        ...
