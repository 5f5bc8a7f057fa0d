"""Which jobs may share a worker, and which of them begin together."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from slidepack.daemon.planner.from_engine import model_key
from slidepack.daemon.store.attempts import AttemptStore
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.supervisor.backoff import fruitless
from slidepack.engine.contract.job import JobSpec, LoraMethod

__all__ = ["Company"]

_MOST_LANES: Final = 64
"""That begin together; more join when they have."""
_MOST_LATER: Final = 64
"""Waiting jobs for which a pack leaves room."""
_ALONE_AFTER: Final = 2
"""Deaths in a row, without a step, of packs: from then on a job is tried without company, so that
one that takes its worker down takes no other job with it."""
_DIED: Final = frozenset({"interrupted"})


class Company:
    """Knows what the waiting jobs ask for."""

    def __init__(self, jobs: JobStore, attempts: AttemptStore, *, packing: bool) -> None:
        """Bind the stores; `packing` says whether any jobs share workers."""
        self._jobs = jobs
        self._attempts = attempts
        self._packing = packing
        self._specs: dict[int, JobSpec] = {}
        """Of the jobs that wait; they never change."""

    def spec(self, job: JobRecord) -> JobSpec:
        """Return what a job asks for."""
        if job.id not in self._specs:
            self._specs[job.id] = self._jobs.spec(job.id)
        return self._specs[job.id]

    def forget_all_but(self, queued: Collection[int]) -> None:
        """Drop what is known of jobs that wait no more."""
        for job_id in self._specs.keys() - queued:
            del self._specs[job_id]

    def may_share(self, job: JobRecord) -> bool:
        """Return whether a job is one of those that share workers."""
        return self._packing and isinstance(self.spec(job).method, LoraMethod)

    def model(self, job: JobRecord, device: str) -> str:
        """Return what a job must have in common with others to share a worker on a device."""
        return model_key(self.spec(job), device)

    def is_shunned(self, job: JobRecord) -> bool:
        """Return whether a job is tried alone, because its workers died again and again."""
        return fruitless(self._attempts.of(job.id), _DIED) >= _ALONE_AFTER

    def of(
        self,
        job: JobRecord,
        device: str,
        others: Sequence[JobRecord],
        begins: Callable[[JobRecord], bool],
    ) -> tuple[list[tuple[JobRecord, JobSpec]], list[JobSpec]]:
        """Return the lanes that begin with a job, it first, and what jobs may join them later.

        Args:
            job: that begins.
            device: on which.
            others: that wait, in order.
            begins: whether one of them may begin now.
        """
        lanes, later = [(job, self.spec(job))], list[JobSpec]()
        if self.is_shunned(job):
            return lanes, later
        key = self.model(job, device)
        for other in others:
            if len(lanes) >= _MOST_LANES or len(later) >= _MOST_LATER:
                break
            if not self.may_share(other) or self.model(other, device) != key:
                continue
            if begins(other) and not self.is_shunned(other):
                lanes.append((other, self.spec(other)))
            else:
                later.append(self.spec(other))
        return lanes, later
