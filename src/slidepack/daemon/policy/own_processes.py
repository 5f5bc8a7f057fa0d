"""Which processes are ours, also for a while after they have left."""

from collections.abc import Collection

from slidepack.daemon.policy.applications import Applications

_REMEMBERED_SECONDS = 30.0
"""A driver may list a process, and count its memory, after the process has gone."""
_SETTLING_SECONDS = 10.0
"""How long a card's totals tell of the time before a worker came or went."""


class OwnProcesses:
    """Follows the workers' pids from look to look."""

    def __init__(self, applications: Applications) -> None:
        """Bind the process table."""
        self._applications = applications
        self._seen: dict[int, tuple[int | None, float]] = {}
        self._current: frozenset[int] = frozenset()
        self._changed_at = float("-inf")
        self._monotonic = 0.0

    def update(self, our_pids: Collection[int], monotonic: float) -> None:
        """Take in the workers that run now; durations follow `monotonic`, in seconds."""
        current = frozenset(our_pids)
        if current != self._current:
            self._changed_at = monotonic
        self._current = current
        self._monotonic = monotonic
        for pid in current:
            started = self._applications.started(pid)
            if started is None and pid in self._seen:
                started = self._seen[pid][0]
            self._seen[pid] = (started, monotonic)
        self._seen = {
            pid: (started, last)
            for pid, (started, last) in self._seen.items()
            if monotonic - last < _REMEMBERED_SECONDS and not self._recycled(pid, started)
        }

    @property
    def pids(self) -> frozenset[int]:
        """The workers that run or ran a moment ago."""
        return frozenset(self._seen)

    @property
    def running(self) -> bool:
        """Whether a worker runs."""
        return bool(self._current)

    @property
    def settling(self) -> bool:
        """Whether a worker came or went a moment ago."""
        return self._monotonic - self._changed_at < _SETTLING_SECONDS

    def _recycled(self, pid: int, started: int | None) -> bool:
        now = self._applications.started(pid)
        return pid not in self._current and None not in (now, started) and now != started
