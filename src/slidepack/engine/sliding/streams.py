"""Streams of a run, created once; on a CPU, the same calls do nothing."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

__all__ = ["Lane", "Streams"]


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream, or on a CPU the order of the calls."""

    stream: torch.cuda.Stream | None
    spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] | None = None
    """Where given, begin and end of everything launched: benchmarks read the time from them."""

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Launch on this stream."""
        if self.stream is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            if self.spans is None:
                yield
                return
            begin, end = (_event(timed=True) for _ in range(2))
            begin.record(self.stream)
            yield
            end.record(self.stream)
            self.spans.append((begin, end))

    def busy_seconds(self) -> float:
        """Return the time of the spans so far, and forget them; the card must be done."""
        if not self.spans:
            return 0.0
        total = sum(float(begin.elapsed_time(end)) for begin, end in self.spans)
        self.spans.clear()
        return total / 1e3

    def mark(self) -> torch.cuda.Event | None:
        """Return an event at the end of what was launched here so far."""
        if self.stream is None:
            return None
        event = _event(timed=False)
        event.record(self.stream)
        return event

    def keep(self, tensor: Tensor) -> None:
        """Let what is launched here read a tensor that another stream made, whoever lets go of it.

        The allocator knows the stream on which memory was taken, and gives it to the next who asks
        there once nobody refers to it: what reads it here may be still to come.
        """
        if self.stream is not None:
            tensor.record_stream(self.stream)

    def wait(self, event: torch.cuda.Event | None) -> None:
        """Let what is launched here next wait for an event; the host does not."""
        if self.stream is not None and event is not None:
            self.stream.wait_event(event)


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """One lane for each engine of the card that works by itself."""

    compute: Lane
    h2d: Lane
    """Weights on their way to the card."""
    d2h: Lane
    """Gradients on their way back."""
    rows_h2d: Lane
    """Rows on their way to the card, which must not queue behind a layer's weights."""
    rows_d2h: Lane
    update_h2d: Lane
    """Optimizer state, which must not hold up the next layer's weights."""
    update: Lane
    update_d2h: Lane

    def settle(self) -> None:
        """Wait until everything that was launched is done: before memory on its way is given back.

        The allocator would give it to the next who asks on the stream that took it, while a copy
        that nobody came for is still to land there.
        """
        for lane in (getattr(self, one.name) for one in fields(self)):
            if lane.stream is not None:
                lane.stream.synchronize()

    @classmethod
    def of(cls, device: torch.device, *, timed: bool = False) -> Self:
        """Create the streams of a device; compute is its current one.

        Args:
            device: where the passes run.
            timed: keep spans, for a benchmark.
        """
        if device.type != "cuda":
            none = Lane(None)
            return cls(
                compute=none,
                h2d=none,
                d2h=none,
                rows_h2d=none,
                rows_d2h=none,
                update_h2d=none,
                update=none,
                update_d2h=none,
            )

        def lane(priority: int = 0) -> Lane:
            stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]  # torch has no types here
            return Lane(stream, [] if timed else None)

        return cls(
            compute=Lane(torch.cuda.current_stream(device)),
            # The next layer's weights go before everything else: compute waits for them.
            h2d=lane(-1),
            d2h=lane(-1),
            rows_h2d=lane(-1),
            rows_d2h=lane(-1),
            update_h2d=lane(),
            update=lane(),
            update_d2h=lane(),
        )


def _event(*, timed: bool) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]  # torch has no types here
