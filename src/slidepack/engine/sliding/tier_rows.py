"""Inputs of some layers, in a file on a drive."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.nvme.files import TierFile, padded
from slidepack.engine.nvme.transport import ALIGNMENT, Pending, Transport
from slidepack.engine.sliding.read_ahead import Stages, make_stages, wait_over

__all__ = ["RowReading", "TierRows", "rows_file_bytes"]


@dataclass(frozen=True, slots=True)
class RowReading:
    """Rows on their way into a stage."""

    pending: Pending
    stage: Tensor
    num_bytes: int

    def wait(self, dtype: torch.dtype, width: int) -> Tensor:
        """Return the rows, [T, D], in the stage.

        Raises:
            SlidepackError: the drive failed.
        """
        self.pending.wait()
        return self.stage[: self.num_bytes].view(dtype).view(-1, width)


def most_micro_batches(max_tokens: int, max_micro_tokens: int) -> int:
    """Return how many micro-batches a step may have: two neighbours are more than one holds."""
    return 2 * -(-max_tokens // max_micro_tokens) + 2


def rows_file_bytes(levels: int, max_tokens: int, max_micro_tokens: int, row_bytes: int) -> int:
    """Return the bytes of the file of so many layers' inputs."""
    most = most_micro_batches(max_tokens, max_micro_tokens)
    return levels * (padded(max_tokens * row_bytes) + most * ALIGNMENT)


class TierRows:
    """A place for each layer and micro-batch, and the stages to and from them."""

    def __init__(
        self,
        levels: Sequence[int],
        file: TierFile,
        transport: Transport,
        *,
        max_tokens: int,
        max_micro_tokens: int,
        row_bytes: int,
        readers: int,
        writers: int,
        pin: bool,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        """Allocate the stages.

        Args:
            levels: the layers.
            file: of `rows_file_bytes`.
            transport: moves them.
            max_tokens: most tokens of a step.
            max_micro_tokens: most tokens of a micro-batch.
            row_bytes: of a token.
            readers: stages on the way in, one for each buffer there.
            writers: stages on the way out.
            pin: a card copies to and from them.
            on_progress: called when a micro-batch has come so far.
        """
        self._on_progress = on_progress
        self.levels = {level: place for place, level in enumerate(levels)}
        self._file = file
        self._transport = transport
        self._row_bytes = row_bytes
        self._most_micro = most_micro_batches(max_tokens, max_micro_tokens)
        self._level_bytes = file.bytes // max(1, len(self.levels))
        stage = padded(max_micro_tokens * row_bytes)
        self._stages: Stages = make_stages(readers + writers, stage, pin=pin, device=None)
        self.read_stages = self._stages.rooms[:readers]
        self._write_stages = self._stages.rooms[readers:]
        self._turn = 0
        self._writing: list[Pending | None] = [None] * writers
        self._written: dict[tuple[int, int], Pending] = {}
        self._bounds: tuple[int, ...] = (0,)

    def begin(self, bounds: tuple[int, ...]) -> None:
        """Begin a step of micro-batches with these bounds; the last step's writes are over then.

        Raises:
            ValueError: there are too many.
            SlidepackError: the drive failed.
        """
        if len(bounds) - 1 > self._most_micro:
            raise ValueError(f"{len(bounds) - 1} micro-batches, room for {self._most_micro}")
        for pending in self._written.values():
            pending.wait()
        self._written.clear()
        self._bounds = bounds

    def room(self) -> Tensor:
        """Return a stage, uint8, for what `put` writes next.

        Raises:
            SlidepackError: the drive failed.
        """
        self._turn = (self._turn + 1) % len(self._write_stages)
        before = self._writing[self._turn]
        if before is not None:
            before.wait()
        return self._write_stages[self._turn]

    def put(self, level: int, micro: int, after: torch.cuda.Event | None) -> None:
        """Write what was put into the stage, once an event is over."""
        stage = self._write_stages[self._turn][: padded(self._bytes(micro))]
        pending = self._transport.write(self._file, self._offset(level, micro), stage, after=after)
        self._writing[self._turn] = self._written[level, micro] = pending
        self._on_progress()

    def read(
        self, level: int, micro: int, stage: Tensor, after: torch.cuda.Event | None
    ) -> RowReading:
        """Begin to read rows into one of `read_stages`, once an event is over.

        Raises:
            SlidepackError: the drive failed.
        """
        self._written[level, micro].wait()
        self._on_progress()
        size = self._bytes(micro)
        pending = self._transport.read(
            self._file, self._offset(level, micro), stage[: padded(size)], after=after
        )
        return RowReading(pending, stage, size)

    def close(self) -> None:
        """Wait until nothing touches the stages, and give their memory back."""
        wait_over([pending for pending in self._writing if pending is not None])
        if self._stages.slab is not None:
            self._stages.slab.close()
        self._file.close()

    def _bytes(self, micro: int) -> int:
        return (self._bounds[micro + 1] - self._bounds[micro]) * self._row_bytes

    def _offset(self, level: int, micro: int) -> int:
        before = padded(self._bounds[micro] * self._row_bytes) + micro * ALIGNMENT
        return self.levels[level] * self._level_bytes + before
