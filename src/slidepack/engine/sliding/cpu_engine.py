"""The optimizer on the CPU: gradients land in host memory and are consumed by a thread."""

import threading
import time

import torch

from slidepack.engine.sliding.cpu_adamw import CpuAdamW
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.sliding.streams import Lane
from slidepack.engine.sliding.tier_chunks import TierChunks
from slidepack.engine.sliding.upcoming import Upcoming
from slidepack.engine.sliding.updates import Job, UpdateQueue, Updates
from slidepack.kernels import AdamWState

__all__ = ["CpuEngine"]

_NO_LANE = Lane(None)


class CpuEngine:
    """One thread that walks a queue of updates over host memory."""

    def __init__(
        self,
        state: TrainState,
        updates: Updates,
        adamw: CpuAdamW,
        chunks: TierChunks | None = None,
        lane: Lane = _NO_LANE,
    ) -> None:
        """Start the thread.

        Args:
            state: what is updated.
            updates: told of what is done.
            adamw: does a step.
            chunks: of the units that are on drives; None where there are none.
            lane: brings weights that are on a drive to where they stay on the card.
        """
        self._state = state
        self._updates = updates
        self._adamw = adamw
        self._chunks = chunks
        self._lane = lane
        self._queue = UpdateQueue()
        self._upcoming = Upcoming(self._queue, chunks)
        self.worked = (0.0, 0)
        """Seconds at work and elements done so far, replaced as one."""
        self._thread = threading.Thread(target=self._run, name="cpu-adamw", daemon=True)
        self._thread.start()

    @property
    def busy_seconds(self) -> float:
        """Seconds at work so far."""
        return self.worked[0]

    @property
    def elements(self) -> int:
        """Elements done so far."""
        return self.worked[1]

    def put(self, job: Job) -> None:
        """Queue an update whose gradient is, or after `landed` will be, in host memory."""
        self._queue.put(job)

    def close(self) -> None:
        """End the thread."""
        self._queue.close()
        self._thread.join()
        if self._chunks is not None:
            self._chunks.close()

    def _run(self) -> None:
        try:
            while (job := self._upcoming.take()) is not None:
                if job.landed is not None:
                    job.landed.synchronize()
                begun = time.perf_counter()
                on_tier = self._state.layout(job.unit) is not None
                if on_tier:
                    self._step_on_tier(job)
                else:
                    stop = job.start + job.grad.numel()
                    state = self._state.states[job.unit].part(job.start, stop)
                    self._step(job, job.start, stop, state)
                seconds, elements = self.worked
                self.worked = (seconds + time.perf_counter() - begun, elements + job.grad.numel())
                job.consumed(None)
                if not on_tier:
                    self._updates.finish(job.unit, None)
        except BaseException as error:  # noqa: BLE001 - handed to the walk, which raises it
            self._updates.fail(error)

    def _step_on_tier(self, job: Job) -> None:
        """Update a unit that is on a drive; it is finished when that has it."""
        assert self._chunks is not None
        for chunk in self._chunks.of(job):
            self._step(job, chunk.start, chunk.stop, chunk.state)
            copied = None
            if job.resident is not None and self._state.master_on_tier(job.unit):
                copied = self._renew(job, chunk.start, chunk.state.master)
            self._chunks.put(chunk, read_until=copied)
            self._upcoming.look()

    def _renew(self, job: Job, start: int, master: torch.Tensor) -> torch.cuda.Event | None:
        assert job.resident is not None
        first = start - job.start
        with self._lane.on():
            job.resident[first : first + master.numel()].copy_(master, non_blocking=True)
        return self._lane.mark()

    def _step(self, job: Job, start: int, stop: int, state: AdamWState) -> None:
        settings = job.settings
        self._adamw.step(
            job.grad[start - job.start : stop - job.start],
            state,
            settings.scalars_host,
            beta1=settings.beta1,
            beta2=settings.beta2,
            eps=settings.eps,
            decayed=self._state.units[job.unit].decayed - start,
        )
