"""Streams of a run, created once; on a CPU, the same calls do nothing."""

import contextlib
from dataclasses import dataclass
from typing import Self

import torch

__all__ = ["Lane", "Streams"]


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream, or on a CPU the order of the calls."""

    stream: torch.cuda.Stream | None

    def on(self) -> contextlib.AbstractContextManager[object]:
        """Launch on this stream."""
        if self.stream is None:
            return contextlib.nullcontext()
        return torch.cuda.stream(self.stream)

    def mark(self) -> torch.cuda.Event | None:
        """Return an event at the end of what was launched here so far."""
        if self.stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
        event.record(self.stream)
        return event

    def wait(self, event: torch.cuda.Event | None) -> None:
        """Let what is launched here next wait for an event; the host does not."""
        if self.stream is not None and event is not None:
            self.stream.wait_event(event)


@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """One lane for each engine of the card that works by itself."""

    compute: Lane
    h2d: Lane
    """Weights and activations on their way to the card."""
    d2h: Lane
    """Gradients and activations on their way back."""
    update_h2d: Lane
    """Optimizer state, which must not hold up the next layer's weights."""
    update: Lane
    update_d2h: Lane

    @classmethod
    def of(cls, device: torch.device) -> Self:
        """Create the streams of a device; compute is its current one."""
        if device.type != "cuda":
            none = Lane(None)
            return cls(
                compute=none, h2d=none, d2h=none, update_h2d=none, update=none, update_d2h=none
            )

        def lane(priority: int = 0) -> Lane:
            return Lane(torch.cuda.Stream(device, priority=priority))  # type: ignore[no-untyped-call]  # torch has no types here

        return cls(
            compute=Lane(torch.cuda.current_stream(device)),
            # The next layer's weights go before everything else: compute waits for them.
            h2d=lane(-1),
            d2h=lane(-1),
            update_h2d=lane(),
            update=lane(),
            update_d2h=lane(),
        )
