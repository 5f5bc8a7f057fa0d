"""One look at the queue: what has been decided so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slidepack.daemon.supervisor.launching import StartedWorker
from slidepack.daemon.supervisor.pack_starting import Joined
from slidepack.daemon.supervisor.seats import DeviceSeat

__all__ = ["Look", "close", "taken"]


@dataclass(slots=True)
class Look:
    """Who may begin where, who has begun, and why the others have not."""

    seats: Sequence[DeviceSeat]
    wanted: Mapping[int, str] | None
    """Device of each job that the plan begins now; None where the queue's order counts."""
    in_line: bool
    """Whether a run has ended just now, so that nothing overtakes one that waits for memory."""
    why: dict[int, str]
    started: list[StartedWorker | Joined] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    """Jobs that have begun."""

    def begins(self, job_id: int) -> bool:
        """Return whether a job may begin at all."""
        return self.wanted is None or job_id in self.wanted

    def choice(self, job_id: int) -> list[DeviceSeat]:
        """Return where a job may begin."""
        if self.wanted is None:
            return list(self.seats)
        return [seat for seat in self.seats if seat.device.key == self.wanted[job_id]]

    def take(self, outcome: StartedWorker | Joined, seat: DeviceSeat, job_id: int) -> None:
        """Note what a job, and whoever came with it, has begun."""
        self.started.append(outcome)
        ids = (job_id,) if isinstance(outcome, Joined) else outcome.job_ids
        self.gone.update(ids)
        seat.jobs.extend(ids)
        if isinstance(outcome, StartedWorker):
            # The others may join it at the next tick, when it is recorded.
            close([seat], f"waits for job {job_id} to end")


def close(seats: Sequence[DeviceSeat], why: str) -> None:
    """Let nobody come to these devices for now; the first reason stays."""
    for seat in seats:
        seat.closed = seat.closed or why


def taken(seats: Sequence[DeviceSeat]) -> str:
    """Return why none of the devices is free; empty where one is, or there is none."""
    return next((seat.taken for seat in seats if seat.taken), "")
