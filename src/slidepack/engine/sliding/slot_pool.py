"""Gradients of one decoder layer at a time, in slots that the optimizer gives back."""

import queue
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.sliding.streams import Lane

__all__ = ["SlotPool"]

_LOOK_SECONDS: Final = 0.2
"""How often a waiting walk looks whether an engine has died."""


class SlotPool:
    """Equal flat buffers, on the card or in host memory, handed out and given back."""

    def __init__(self, slots: list[Tensor], check: Callable[[], None]) -> None:
        """Begin with every slot free.

        Args:
            slots: the buffers.
            check: raises what an engine died of.
        """
        self._slots = slots
        self._check = check
        self._free: queue.SimpleQueue[tuple[int, torch.cuda.Event | None]] = queue.SimpleQueue()
        for index in range(len(slots)):
            self._free.put((index, None))

    def acquire(self, lane: Lane) -> tuple[Tensor, Callable[[torch.cuda.Event | None], None]]:
        """Wait for a slot; return it, and the call that gives it back after an event.

        What is launched next on `lane` may write the slot.

        Raises:
            BaseException: what an engine died of, while this waits.
        """
        while True:
            try:
                index, event = self._free.get(timeout=_LOOK_SECONDS)
                break
            except queue.Empty:
                self._check()
        lane.wait(event)
        return self._slots[index], lambda after: self._free.put((index, after))
