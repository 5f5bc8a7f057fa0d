"""The window of decoder layers on the card: a ring of slots, filled ahead of the walk."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from slidepack.engine.nvme.files import padded
from slidepack.engine.sliding.read_ahead import make_stages
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.tier_weights import Coming, TierWeights

__all__ = ["WeightRing", "Weights"]


class Weights(Protocol):
    """Where the walk gets a layer's weights."""

    def prefetch(self, layer: int) -> None:
        """Begin to bring a layer to the card, where that takes time."""

    def acquire(self, layer: int) -> Tensor:
        """Return a layer's weights; what is launched next on the compute lane may read them."""

    def release(self, layer: int) -> None:
        """Say that everything which reads the layer has been launched."""

    def forget(self, layer: int) -> None:
        """Drop a layer whose weights are about to change."""

    def resident(self, layer: int) -> Tensor | None:
        """Return the layer's weights on the card, where the optimizer is to renew them there."""


@dataclass(slots=True)
class _Slot:
    room: Tensor
    """uint8, with what a file's padding takes."""
    flat: Tensor
    layer: int | None = None
    """Whose weights it holds or is being filled with."""
    held: bool = False
    filled: torch.cuda.Event | None = None
    free: torch.cuda.Event | None = None
    """When the pass that read it last is done."""
    last_use: int = 0
    coming: Coming | None = None
    """Where it is being filled from a drive, until that was waited for."""


class WeightRing:
    """Slots of one decoder layer each. A layer stays in its slot until the slot is needed."""

    def __init__(
        self,
        *,
        slots: int,
        elements: int,
        dtype: torch.dtype,
        device: torch.device,
        streams: Streams,
        source: Callable[[int], Tensor],
        ready: Callable[[int], bool],
        await_ready: Callable[[int], None],
        tier: TierWeights | None = None,
    ) -> None:
        """Allocate the slots.

        Args:
            slots: how many; two at least, one to read and one to fill.
            elements: parameters of a layer.
            dtype: of the weights.
            device: where the passes run.
            streams: of the run.
            source: returns a layer's weights in host memory.
            ready: whether a layer's update is done, so that a copy would not wait.
            await_ready: makes the h2d lane wait for a layer's update, the host too if need be.
            tier: reads the layers that are on drives; None where there are none.
        """
        # Each its own tensor: autograd would take a fill of one slot for a change of all.
        self._stages = make_stages(
            slots,
            padded(elements * dtype.itemsize),
            pin=False,
            device=None if device.type == "cpu" else device,
        )
        size = elements * dtype.itemsize
        self._slots = [_Slot(room, room[:size].view(dtype)) for room in self._stages.rooms]
        self._tier = tier
        self._streams = streams
        self._source = source
        self._ready = ready
        self._await_ready = await_ready
        self._uses = 0

    def prefetch(self, layer: int) -> None:
        """Begin to fill a slot, where one is free and the layer's update is done."""
        if self._find(layer) is None and self._ready(layer):
            slot = self._evictable()
            if slot is not None:
                self._fill(slot, layer)

    def acquire(self, layer: int) -> Tensor:
        """Return a layer's weights; what is launched next on the compute lane may read them."""
        slot = self._find(layer)
        if slot is None:
            slot = self._evictable() or next((s for s in self._slots if not s.held), None)
            assert slot is not None, "every slot is held"
            self._fill(slot, layer)
        slot.held = True
        if slot.coming is not None:
            slot.filled, slot.coming = slot.coming.wait(), None
        self._uses += 1
        slot.last_use = self._uses
        self._streams.compute.wait(slot.filled)
        return slot.flat

    def release(self, layer: int) -> None:
        """Say that everything which reads the layer has been launched."""
        slot = self._find(layer)
        assert slot is not None
        slot.held = False
        slot.free = self._streams.compute.mark()

    def forget(self, layer: int) -> None:
        """Drop a layer whose weights are about to change."""
        slot = self._find(layer)
        if slot is not None:
            slot.layer = None

    def abandon(self) -> None:
        """Let go of every slot, after a pass that did not come to its end."""
        for slot in self._slots:
            slot.held = False
            slot.free = self._streams.compute.mark()

    def resident(self, layer: int) -> Tensor | None:
        """Return what the card's engine renews: nothing, the host's copy is fetched again."""
        del layer
        return None

    def _find(self, layer: int) -> _Slot | None:
        return next((slot for slot in self._slots if slot.layer == layer), None)

    def _evictable(self) -> _Slot | None:
        free = [slot for slot in self._slots if not slot.held]
        empty = [slot for slot in free if slot.layer is None]
        # The least recently read one, but never what was fetched and not read yet.
        read = [slot for slot in free if slot.layer is not None and slot.last_use]
        candidates = empty or sorted(read, key=lambda slot: slot.last_use)
        return candidates[0] if candidates else None

    def _fill(self, slot: _Slot, layer: int) -> None:
        h2d = self._streams.h2d
        if slot.coming is not None:
            # Nobody came for it.
            slot.coming.wait()
        slot.layer, slot.coming = None, None
        self._await_ready(layer)
        if self._tier is not None and self._tier.has(layer):
            slot.coming = self._tier.fill(layer, slot.room, slot.free)
        else:
            h2d.wait(slot.free)
            with h2d.on():
                slot.flat.copy_(self._source(layer), non_blocking=True)
            slot.filled = h2d.mark()
        slot.layer = layer
        slot.last_use = 0
