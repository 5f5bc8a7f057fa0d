"""Who is told what became of a job."""

from typing import Protocol

from slidepack.daemon.states import JobState
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import ErrorReport


class Outcomes(Protocol):
    """Told in the transaction that records it, so that neither is there without the other."""

    def settled(
        self, job: JobRecord, state: JobState, reason: str, error: ErrorReport | None, now: float
    ) -> None:
        """Take what became of a job that no user ended.

        Args:
            job: as it was before.
            state: as it is now: `completed`, `failed`, `paused` or `queued`.
            reason: for the user.
            error: why it failed or is paused, where that is an error.
            now: unix time in seconds.
        """
        ...
