"""The lanes of the layers that are on the card, with gradients; the rest is in host memory."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from slidepack.engine.lora.lanes import LaneAdapters
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.slot_pool import SlotPool
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.updates import Updates
from slidepack.engine.sliding.weight_ring import WeightRing
from slidepack.kernels import LoraWeights

__all__ = ["HostLanePool", "LaneSlots"]


class HostLanePool(LanePool):
    """A layer's lanes in host memory, pinned where a card copies from it."""

    def __init__(self, dtype: torch.dtype, *, pin: bool) -> None:
        """Begin empty.

        Args:
            dtype: of the weights as the passes read them.
            pin: the memory is copied to and from a GPU.
        """
        self._pin = pin
        # They stay pinned as long as they are referred to.
        self._slabs: list[Slab] = []
        super().__init__(torch.device("cpu"), dtype)

    def _resize(self, elements: int) -> None:
        before, self._slabs = self._slabs, []
        try:
            super()._resize(elements)
        except BaseException:
            # Some tensors may be where they were.
            self._slabs += before
            raise

    def _new(self, elements: int, dtype: torch.dtype) -> Tensor:
        if not elements:
            return super()._new(elements, dtype)
        self._slabs.append(Slab(elements * dtype.itemsize, pin=self._pin))
        return self._slabs[-1].take(elements, dtype)


class LaneSlots:
    """A window of the lanes of a few layers."""

    def __init__(
        self,
        pools: Sequence[LanePool],
        updates: Updates,
        streams: Streams,
        device: torch.device,
        slots: int,
    ) -> None:
        """Begin without slots: lanes decide how large they are.

        Args:
            pools: of each layer.
            updates: of each layer, by the engine.
            streams: of the run.
            device: where the passes run.
            slots: layers on the card at once.
        """
        self.pools = tuple(pools)
        self._updates = updates
        self._streams = streams
        self._device = device
        self._slots = slots
        self._lanes: LaneAdapters | None = None
        self._elements = 0
        self._ring: WeightRing | None = None
        self._grads: SlotPool | None = None
        self._unwritten: Tensor | None = None
        self._flats: dict[int, Tensor] = {}

    def begin(self, lanes: LaneAdapters) -> None:
        """Begin a pass of these lanes; what the card has of the last one is old.

        Raises:
            torch.OutOfMemoryError: the slots do not fit.
        """
        self._release_all()
        pool = self.pools[0]
        elements = pool.weights.numel()
        if elements != self._elements or self._ring is None:
            self._allocate(elements, pool)
        elif lanes is not self._lanes:
            self._clear_gradients()
        self._lanes = lanes
        for layer in range(len(self.pools)):
            self._ring_now.forget(layer)

    def _allocate(self, elements: int, pool: LanePool) -> None:
        # A pass that was abandoned has fetched layers that nobody came for.
        self._streams.settle()
        self._ring = self._grads = self._unwritten = None
        self._elements = 0
        self._ring = WeightRing(
            slots=self._slots,
            elements=elements,
            dtype=pool.dtype,
            device=self._device,
            streams=self._streams,
            source=lambda layer: self.pools[layer].weights.detach(),
            ready=self._updates.is_ready,
            await_ready=lambda layer: self._streams.h2d.wait(self._updates.await_unit(layer)),
        )
        rooms = [
            torch.zeros(elements, dtype=pool.grads.dtype, device=self._device)
            for _ in range(self._slots)
        ]
        self._grads = SlotPool(rooms, self._updates.check)
        # Where gradients would be, in a pass that has none.
        self._unwritten = rooms[0]
        self._elements = elements

    def _clear_gradients(self) -> None:
        """Zero the slots: what other lanes left between a lane's blocks would count in its norm."""
        assert self._grads is not None
        compute = self._streams.compute
        taken = [self._grads.acquire(compute) for _ in range(self._slots)]
        for grads, give_back in taken:
            grads.zero_()
            give_back(compute.mark())

    @property
    def _ring_now(self) -> WeightRing:
        assert self._ring is not None
        return self._ring

    def prefetch(self, layer: int) -> None:
        """Begin to bring a layer's lanes to the card, once they are updated."""
        self._ring_now.prefetch(layer)

    def acquire(self, layer: int) -> Mapping[str, LoraWeights]:
        """Return a layer's lanes on the card, for a pass without gradients."""
        flat = self._flats[layer] = self._ring_now.acquire(layer)
        assert self._lanes is not None
        assert self._unwritten is not None
        return self._lanes.weights_over(layer, flat, self._unwritten)

    def release(self, layer: int) -> None:
        """Say that everything which reads the layer's lanes has been launched."""
        del self._flats[layer]
        self._ring_now.release(layer)

    @contextlib.contextmanager
    def gradient(self, layer: int) -> Iterator[tuple[Mapping[str, LoraWeights], Tensor]]:
        """Give a layer that is on the card room for its gradient, which then goes to its pool.

        Yields:
            The layer's lanes, and their gradient, flat.
        """
        assert self._lanes is not None
        assert self._grads is not None
        compute, d2h = self._streams.compute, self._streams.d2h
        grads, give_back = self._grads.acquire(compute)
        flat = self._flats[layer].detach().requires_grad_()
        try:
            yield self._lanes.weights_over(layer, flat, grads), grads
        except BaseException:
            give_back(compute.mark())
            raise
        self._updates.begin(layer)
        d2h.wait(compute.mark())
        with d2h.on():
            self.pools[layer].grads.copy_(grads, non_blocking=True)
        landed = d2h.mark()
        give_back(landed)
        self._updates.finish(layer, landed)

    def serve(self, lanes: LaneAdapters, layer: int) -> Mapping[str, LoraWeights]:
        """Return a layer's lanes for a pass that asks for the layers in order; then the last one
        is not read any more."""
        if layer == 0:
            self.begin(lanes)
        self._release_all()
        weights = self.acquire(layer)
        if layer + 1 < len(self.pools):
            self.prefetch(layer + 1)
        return weights

    def _release_all(self) -> None:
        for layer in list(self._flats):
            self.release(layer)

    def abandon(self) -> None:
        """Let go of everything, after a pass that did not come to its end."""
        self._flats.clear()
        if self._ring is not None:
            self._ring.abandon()

    def parts(self, flat: Tensor) -> list[Tensor]:
        """Return each lane's part of a layer's flat tensor."""
        assert self._lanes is not None
        return [flat[arena.start : arena.start + arena.layer_size] for arena in self._lanes.arenas]
