"""Jobs that the plan begins and that do not begin: after a while the plan goes on without them.

The supervisor has the last word about a start. What keeps it from one, as memory that another
program took, must not keep all that is planned behind it from running.
"""

from collections.abc import Collection
from typing import Final

__all__ = ["PassedOver"]

_PATIENCE_SECONDS: Final = 45.0
_PUT_OFF_SECONDS: Final = 120.0
_SILENCE_SECONDS: Final = 5.0
"""Without a question for so long, nobody tried: then a job did not fail to begin."""


class PassedOver:
    """Remembers since when jobs are due. One thread at a time may use it."""

    def __init__(self) -> None:
        """Start with nobody due."""
        self._asked_at = float("-inf")
        self._due_since: dict[int, float] = {}
        self._until: dict[int, float] = {}

    def due(self, job_ids: Collection[int], now: float) -> bool:
        """Take note of the jobs that should begin, and say whether any is put off by that.

        Args:
            job_ids: all that the plan begins now.
            now: unix seconds.
        """
        if not 0.0 <= now - self._asked_at <= _SILENCE_SECONDS:
            self._due_since.clear()
        self._asked_at = now
        self._due_since = {job: self._due_since.get(job, now) for job in job_ids}
        late = [job for job, at in self._due_since.items() if now - at > _PATIENCE_SECONDS]
        for job in late:
            del self._due_since[job]
            self._until[job] = now + _PUT_OFF_SECONDS
        return bool(late)

    def put_off(self, now: float) -> dict[int, float]:
        """Return the jobs that are put off, and until when, in unix seconds."""
        # A clock that was set back must not make minutes of hours.
        self._until = {
            job: until
            for job, until in self._until.items()
            if 0.0 < until - now <= _PUT_OFF_SECONDS
        }
        return dict(self._until)
