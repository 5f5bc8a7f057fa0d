"""The optimizer on the CPU: gradients land in host memory and are consumed by a thread."""

import threading
import time

from slidepack.engine.sliding.cpu_adamw import CpuAdamW
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.sliding.updates import Job, UpdateQueue, Updates

__all__ = ["CpuEngine"]


class CpuEngine:
    """One thread that walks a queue of updates over host memory."""

    def __init__(self, state: TrainState, updates: Updates, adamw: CpuAdamW) -> None:
        """Start the thread."""
        self._state = state
        self._updates = updates
        self._adamw = adamw
        self._queue = UpdateQueue()
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

    def _run(self) -> None:
        try:
            while (job := self._queue.take()) is not None:
                self._step(job)
        except BaseException as error:  # noqa: BLE001 - handed to the walk, which raises it
            self._updates.fail(error)

    def _step(self, job: Job) -> None:
        if job.landed is not None:
            job.landed.synchronize()
        begun = time.perf_counter()
        settings = job.settings
        self._adamw.step(
            job.grad,
            self._state.states[job.unit].part(job.start, job.start + job.grad.numel()),
            settings.scalars_host,
            beta1=settings.beta1,
            beta2=settings.beta2,
            eps=settings.eps,
            decayed=self._state.units[job.unit].decayed - job.start,
        )
        seconds, elements = self.worked
        self.worked = (seconds + time.perf_counter() - begun, elements + job.grad.numel())
        job.consumed(None)
        self._updates.finish(job.unit, None)
