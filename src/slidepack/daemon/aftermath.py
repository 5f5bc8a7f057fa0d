"""What follows from what became of a job: its user is told, and the queue may stop."""

from slidepack.daemon.notices.notices import Notices
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.states import JobState
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import ErrorReport


class Aftermath:
    """The supervisor's `Outcomes`."""

    def __init__(self, notices: Notices, policy: PolicyWatch) -> None:
        """Bind who tells and what holds the queue."""
        self._notices = notices
        self._policy = policy

    def settled(
        self, job: JobRecord, state: JobState, reason: str, error: ErrorReport | None, now: float
    ) -> None:
        """Tell of a job that no user ended, and hold the queue where that is wished.

        Both belong to the supervisor's transaction, which may yet fail.
        """
        self._notices.job_changed(job, state, reason, error, now)
        if state == "failed" and job.on_failure == "stop":
            self._policy.pause(why=f"job {job.id} failed, which was to stop the queue")
