"""Hands gradients to the optimizer's engines as they land, and says which weights are new.

Without clipping a unit is updated while the backward pass goes on below it. With clipping every
update needs the norm of the whole gradient, so gradients wait in host memory until the backward
pass is over, and the updates run beside the next forward pass; that is exact, and costs two more
bytes a parameter.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.sliding.cpu_engine import CpuEngine
from slidepack.engine.sliding.gpu_engine import GpuEngine
from slidepack.engine.sliding.sharing import EngineName, Sharing
from slidepack.engine.sliding.slot_pool import SlotPool
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.updates import Job, StepSettings, Updates
from slidepack.kernels import ADAMW_BLOCK

__all__ = ["AsyncOptimizer", "SharedUnit"]

_CPU_PIECES: Final = 4
"""Of the gradient that the CPU gets last: its copy and its update would follow each other."""
Consumed = Callable[[torch.cuda.Event | None], None]


@dataclass(frozen=True, slots=True)
class SharedUnit:
    """A unit that both engines update: the embedding, for which the next step waits."""

    unit: int
    cut: int
    """The CPU updates the elements before this one, a multiple of `grain`."""
    room: Tensor
    """Host memory for their gradient."""
    grain: int = ADAMW_BLOCK
    """Elements that are updated together: a block of 8-bit moments, or a chunk on a drive."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The CPU's elements in pieces: it begins with one while the next is on its way."""
        step = -(-self.cut // _CPU_PIECES // self.grain) * self.grain
        return [(start, min(start + step, self.cut)) for start in range(0, self.cut, step)]


class AsyncOptimizer:
    """The walk's side of the optimizer."""

    def __init__(
        self,
        *,
        updates: Updates,
        streams: Streams,
        engines: dict[EngineName, CpuEngine | GpuEngine],
        sharing: Sharing,
        host_slots: SlotPool | None,
        waiting: Sequence[Tensor] | None,
        shared: SharedUnit | None = None,
        on_tier: frozenset[int] = frozenset(),
    ) -> None:
        """Bind the engines.

        Args:
            updates: shared with the engines.
            streams: of the run.
            engines: those that run.
            sharing: chooses among them.
            host_slots: room for gradients on their way to the CPU, of the largest unit there.
            waiting: with clipping, room in host memory for every unit's gradient; else None.
            shared: a unit that both engines update, each its part.
            on_tier: units whose weights are on a drive: either engine renews those on the card.
        """
        self._updates = updates
        self._streams = streams
        self._engines = engines
        self._sharing = sharing
        self._host_slots = host_slots
        self._waiting = waiting
        self._shared = shared
        self._on_tier = on_tier
        self._held: list[Job] = []
        self._on_host: dict[int, slice] = {}
        self._rehearsing = False

    def submit(
        self,
        unit: int,
        priority: int,
        grad: Tensor,
        settings: StepSettings,
        consumed: Consumed,
        resident: Tensor | None = None,
    ) -> None:
        """Take over a unit's gradient, which the compute lane has just been told to make.

        Args:
            unit: index.
            priority: low where the next forward pass needs it early.
            grad: [elements] on the card.
            settings: of this step; the clip factor may still change where gradients wait.
            consumed: gives the gradient's memory back.
            resident: the unit's weights on the card, where they stay there.

        Raises:
            BaseException: what an engine died of.
        """
        landed = self._streams.compute.mark()
        if self._rehearsing:
            consumed(landed)
            return
        job = Job(priority, unit, grad, landed, settings, consumed, resident)
        self._updates.begin(unit, self._piece_count(unit))
        if self._waiting is not None:
            self._held.append(self._landing(job, self._waiting[unit], _nothing))
            return
        for piece, engine in self._pieces(job):
            if engine == "gpu":
                self._engines["gpu"].put(piece)
            elif self._shared is not None and self._is_shared(unit):
                room = self._shared.room[piece.start :]
                self._engines["cpu"].put(self._landing(piece, room, _nothing))
            else:
                assert self._host_slots is not None
                room, give_back = self._host_slots.acquire(self._streams.d2h)
                self._engines["cpu"].put(self._landing(piece, room, give_back))

    def _is_shared(self, unit: int) -> bool:
        return self._shared is not None and unit == self._shared.unit

    def _piece_count(self, unit: int) -> int:
        shared = self._shared
        return len(shared.spans) + 1 if shared is not None and self._is_shared(unit) else 1

    def on_host(self, unit: int) -> slice:
        """Return the elements of a unit that the CPU updated last: the card has old ones."""
        return slice(0, 0) if unit in self._on_tier else self._on_host.get(unit, slice(0, 0))

    def _pieces(self, job: Job) -> list[tuple[Job, EngineName]]:
        shared = self._shared
        if shared is None or not self._is_shared(job.unit):
            name = self._sharing.pick(job.unit, job.grad.numel())
            self._on_host[job.unit] = slice(None) if name == "cpu" else slice(0, 0)
            return [(job, name)]
        cut, end = shared.cut, job.grad.numel()
        self._sharing.book("cpu", cut)
        self._sharing.book("gpu", end - cut)
        self._on_host[job.unit] = slice(0, cut)
        pieces: list[tuple[Job, EngineName]] = [
            (_piece(job, start, stop), "cpu") for start, stop in shared.spans
        ]
        return [*pieces, (_piece(job, cut, end), "gpu")]

    @property
    def waits(self) -> bool:
        """Whether gradients wait for a clip factor."""
        return self._waiting is not None

    @contextlib.contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Drop the gradients submitted within: passes run as in training and change nothing."""
        self._rehearsing = True
        try:
            yield
        finally:
            self._rehearsing = False

    @property
    def engines(self) -> Mapping[EngineName, CpuEngine | GpuEngine]:
        """The engines that run."""
        return self._engines

    def release(self, clip: Tensor) -> None:
        """Start the updates that waited for the clip factor, a scalar on the CPU."""
        for job in sorted(self._held):
            ready = replace(job, settings=clipped(job.settings, clip))
            for piece, engine in self._pieces(ready):
                self._engines[engine].put(piece)
        self._held.clear()

    def skip(self) -> None:
        """Drop the gradients that waited: the weights stay as they are."""
        for job in self._held:
            self._updates.cancel(job.unit)
        self._held.clear()

    def _landing(self, job: Job, room: Tensor, give_back: Consumed) -> Job:
        """Copy a gradient to host memory, behind the pass that makes it."""
        d2h = self._streams.d2h
        target = room.view(torch.uint8)[: job.grad.nbytes].view(job.grad.dtype)
        d2h.wait(job.landed)
        with d2h.on():
            target.copy_(job.grad, non_blocking=True)
        landed = d2h.mark()
        job.consumed(landed)
        return replace(job, grad=target, landed=landed, consumed=give_back)

    def close(self) -> None:
        """End the engines' threads."""
        for engine in self._engines.values():
            engine.close()


def clipped(settings: StepSettings, clip: Tensor) -> StepSettings:
    """Return a step's settings with another factor on the gradient."""
    host = settings.scalars_host.clone()
    host[0] = clip
    device = host.to(settings.scalars_device.device)
    return replace(settings, scalars_host=host, scalars_device=device)


def _piece(job: Job, start: int, stop: int) -> Job:
    resident = None if job.resident is None else job.resident[start:stop]
    return replace(job, grad=job.grad[start:stop], resident=resident, start=start)


def _nothing(_: torch.cuda.Event | None) -> None:
    """The waiting room has a place for each unit; nothing is given back."""
