"""Updates the lanes in host memory, layer by layer, beside the next step's forward pass."""

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from slidepack.engine.lora.optimizer import adamw_scalars_of, optimizer_step
from slidepack.engine.lora.passes import LaneUpdate
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.sliding.cpu_adamw import CpuAdamW
from slidepack.engine.sliding.updates import Updates

__all__ = ["LaneEngine"]


@dataclass(frozen=True, slots=True)
class _Step:
    lanes: tuple[LaneUpdate, ...]
    landed: list[torch.cuda.Event | None]
    """When each layer's gradient is in host memory."""


class LaneEngine:
    """One thread."""

    def __init__(self, pools: Sequence[LanePool], updates: Updates, adamw: CpuAdamW) -> None:
        """Start the thread.

        Args:
            pools: of each layer; a step's gradients are on their way there when it starts.
            updates: of each layer; a pass waits for them.
            adamw: for split masters; others are updated as resident lanes are on a CPU.
        """
        self._pools = tuple(pools)
        self._updates = updates
        self._adamw = adamw
        self._steps: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="lane-adamw", daemon=True)
        self._thread.start()

    def start(self, lanes: Sequence[LaneUpdate]) -> None:
        """Begin the optimizer steps of these lanes.

        Raises:
            BaseException: what the thread died of.
        """
        layers = range(len(self._pools))
        landed = [self._updates.await_unit(layer) for layer in layers]
        for layer in layers:
            self._updates.begin(layer)
        self._steps.put(_Step(tuple(lanes), landed))

    def settle(self) -> None:
        """Wait until every lane is updated.

        Raises:
            BaseException: what the thread died of.
        """
        self._updates.drain()

    def close(self) -> None:
        """End the thread."""
        self._steps.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (step := self._steps.get()) is not None:
                for layer, (pool, landed) in enumerate(zip(self._pools, step.landed, strict=True)):
                    if landed is not None:
                        landed.synchronize()
                    for lane in step.lanes:
                        self._update(pool, lane)
                    self._updates.finish(layer, None)
        except BaseException as error:  # noqa: BLE001 - handed to the walk, which raises it
            self._updates.fail(error)

    def _update(self, pool: LanePool, lane: LaneUpdate) -> None:
        start, stop = lane.arena.start, lane.arena.start + lane.arena.layer_size
        state, grads = pool.state(start, stop - start), pool.grads[start:stop]
        spec = lane.optim
        if state.remainder is None:
            optimizer_step(
                state, grads, spec, lane.step, lane.total_steps, lane.norm, lane.carried_steps
            )
            return
        self._adamw.step(
            grads,
            state,
            adamw_scalars_of(spec, lane.step, lane.total_steps, lane.norm, lane.carried_steps),
            beta1=spec.beta1,
            beta2=spec.beta2,
            eps=spec.eps,
            decayed=stop - start,
        )
