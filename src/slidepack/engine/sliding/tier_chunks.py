"""State on drives as an optimizer works on it: chunk by chunk, read ahead, written behind."""

import contextlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from slidepack.engine.nvme.transport import Pending
from slidepack.engine.sliding.read_ahead import Loaded, ReadAhead, Reading, make_stages, wait_over
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.sliding.updates import Job, Updates
from slidepack.kernels import AdamWState

__all__ = ["Chunk", "TierChunks"]

_FEWEST_STAGES: Final = 2


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some elements of a unit, in memory."""

    unit: int
    start: int
    """First element, in the unit."""
    stop: int
    state: AdamWState
    """Of these elements: in a stage what is on the drive, the rest where it is in RAM."""
    loaded: Loaded
    on_card: bool
    """Whether the stage is on the card."""


@dataclass(frozen=True, slots=True)
class _Tag:
    job: Job
    index: int
    last: bool


@dataclass(frozen=True, slots=True)
class _Writing:
    chunk: Chunk
    pending: tuple[Pending, ...]
    after: torch.cuda.Event | None
    """When nothing else reads the stage."""


class TierChunks:
    """The chunks of an engine's jobs, and a thread that sees them written."""

    def __init__(
        self,
        state: TrainState,
        updates: Updates,
        *,
        stages: int,
        device: torch.device,
        on_card: bool,
    ) -> None:
        """Allocate the stages and start the thread.

        Args:
            state: some of which is on drives.
            updates: told when all of a job is written, or of what went wrong.
            stages: chunks in memory at once.
            device: where the passes run.
            on_card: the transport reads to and writes from the card itself.
        """
        assert state.tier is not None
        self._state = state
        self._tier = state.tier
        self._updates = updates
        self._on_card = on_card
        self._stages = make_stages(
            max(_FEWEST_STAGES, stages),
            state.tier_stage_bytes,
            pin=device.type == "cuda",
            device=device if on_card else None,
        )
        self._ahead = ReadAhead(self._stages, self._tier.transport)
        self._written: queue.SimpleQueue[_Writing | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._see_written, name="tier-written", daemon=True)
        self._thread.start()

    def expect(self, job: Job) -> None:
        """Read a job's chunks, after those of the jobs before."""
        if not self._tier.has(job.unit):
            return
        layout, source = self._tier.layout(job.unit), self._tier.source(job.unit)
        stop = job.start + job.grad.numel()
        indices = list(layout.chunks(job.start, stop))
        self._ahead.expect(
            [
                Reading(source, layout.requests(index), _Tag(job, index, index == indices[-1]))
                for index in indices
            ]
        )

    def of(self, job: Job) -> Iterator[Chunk]:
        """Yield a job's chunks as they are read; `put` each.

        Raises:
            SlidepackError: the drive failed.
        """
        layout = self._tier.layout(job.unit)
        for _ in layout.chunks(job.start, job.start + job.grad.numel()):
            loaded = self._ahead.take()
            assert loaded is not None
            tag: _Tag = loaded.reading.tag
            assert tag.job is job, "jobs are done in the order in which they were expected"
            begin, end = layout.span(tag.index)
            state = layout.state(loaded.stage, tag.index, self._state.states[job.unit])
            yield Chunk(job.unit, begin, end, state, loaded, self._on_card)

    def put(
        self,
        chunk: Chunk,
        after: torch.cuda.Event | None = None,
        read_until: torch.cuda.Event | None = None,
    ) -> None:
        """Write a chunk, and free its stage then.

        Args:
            chunk: updated.
            after: when the update is in the stage.
            read_until: when nothing else reads the stage.
        """
        target, stage = self._tier.target(chunk.unit), chunk.loaded.stage
        pending = tuple(
            self._tier.transport.write(target, offset, stage[start : start + size], after=after)
            for offset, start, size in chunk.loaded.reading.requests
        )
        self._written.put(_Writing(chunk, pending, read_until))

    def close(self) -> None:
        """End the thread, once what was put is written; give the stages' memory back."""
        self._written.put(None)
        self._thread.join()
        self._ahead.close()
        if self._stages.slab is not None:
            self._stages.slab.close()

    def _see_written(self) -> None:
        one: _Writing | None = None
        try:
            while (one := self._written.get()) is not None:
                self._see(one)
        except BaseException as error:  # noqa: BLE001 - handed to the walk, which raises it
            self._ahead.fail(error)
            self._updates.fail(error)
            self._wait_for_the_rest(one)

    def _see(self, one: _Writing) -> None:
        for pending in one.pending:
            pending.wait()
        if one.after is not None:
            one.after.synchronize()
        chunk = one.chunk
        tag: _Tag = chunk.loaded.reading.tag
        self._tier.landed(chunk.unit, chunk.stop - chunk.start)
        self._updates.advance()
        self._ahead.give_back(chunk.loaded.stage)
        if tag.last:
            self._updates.finish(chunk.unit, None)

    def _wait_for_the_rest(self, one: _Writing | None) -> None:
        """Wait until nothing reads a stage, from this one on: its memory is given back then."""
        while one is not None:
            wait_over(one.pending)
            if one.after is not None:
                # A card that has failed says so at every call.
                with contextlib.suppress(RuntimeError):
                    one.after.synchronize()
            one = self._written.get()
