"""The jobs of an engine in the order in which it will do them."""

from collections import deque

from slidepack.engine.sliding.tier_chunks import TierChunks
from slidepack.engine.sliding.updates import Job, UpdateQueue

__all__ = ["Upcoming"]


class Upcoming:
    """An engine's queue; where state is on drives, its next job is known while one is done.

    The drives would stand still between two jobs otherwise. What is in RAM is chosen as late as
    can be instead: the most urgent job may have come meanwhile.
    """

    def __init__(self, jobs: UpdateQueue, chunks: TierChunks | None) -> None:
        """Bind them.

        Args:
            jobs: of the engine.
            chunks: told of each job once its turn is certain; None where all state is in RAM.
        """
        self._jobs = jobs
        self._chunks = chunks
        self._chosen: deque[Job] = deque()

    def take(self) -> Job | None:
        """Wait for a job; None once the queue is closed."""
        if not self._chosen:
            job = self._jobs.take()
            if job is None:
                return None
            self._choose(job)
        job = self._chosen.popleft()
        self.look()
        return job

    def look(self) -> None:
        """Choose the next job, if there is one; called now and then while one is done."""
        if self._chunks is not None and not self._chosen:
            job = self._jobs.poll()
            if job is not None:
                self._choose(job)

    def is_empty(self) -> bool:
        """Return whether `take` would wait."""
        return not self._chosen and self._jobs.is_empty()

    def _choose(self, job: Job) -> None:
        self._chosen.append(job)
        if self._chunks is not None:
            self._chunks.expect(job)
