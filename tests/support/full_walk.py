"""A walk put together by hand, around an optimizer or an engine that a test brings."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.cpu_adamw import CpuAdamW
from slidepack.engine.sliding.cpu_engine import CpuEngine
from slidepack.engine.sliding.ends import TrainedEnds
from slidepack.engine.sliding.full_driver import FullDriver, Window
from slidepack.engine.sliding.optimizer import AsyncOptimizer
from slidepack.engine.sliding.resident_weights import ResidentWeights
from slidepack.engine.sliding.rows import DeviceRows
from slidepack.engine.sliding.sharing import FixedSharing
from slidepack.engine.sliding.slot_pool import SlotPool
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.updates import StepSettings, Updates
from slidepack.engine.sliding.weight_ring import WeightRing, Weights
from support.full_runs import CPU, Recipe


class Capture(AsyncOptimizer):
    """Keeps a copy of every gradient, and spoils the slot that it came in."""

    def __init__(self, updates: Updates, streams: Streams, units: int) -> None:
        super().__init__(
            updates=updates,
            streams=streams,
            engines={},
            sharing=FixedSharing(["cpu"] * units),
            host_slots=None,
            waiting=None,
        )
        self.grads: dict[int, Tensor] = {}

    def submit(
        self,
        unit: int,
        priority: int,
        grad: Tensor,
        settings: StepSettings,
        consumed: Callable[[torch.cuda.Event | None], None],
        resident: Tensor | None = None,
    ) -> None:
        self.grads[unit] = grad.clone()
        grad.fill_(torch.nan)
        consumed(None)


@dataclass(frozen=True, slots=True)
class BrokenAdamW(CpuAdamW):
    """Does nothing, and raises when it comes to a certain call."""

    error: BaseException
    good_calls: int
    calls: list[int]

    def step(self, grad: Tensor, *_: Any, **__: Any) -> None:
        self.calls.append(grad.numel())
        if len(self.calls) > self.good_calls:
            raise self.error


@dataclass
class Walk:
    """A driver, and what a test looks at."""

    driver: FullDriver
    updates: Updates
    optimizer: AsyncOptimizer


def capturing(shape: ModelShape, state: TrainState, recipe: Recipe) -> tuple[FullDriver, Capture]:
    """Return a walk that updates nothing, and the gradients that it hands over."""
    updates, streams = Updates(len(state.units)), Streams.of(CPU)
    capture = Capture(updates, streams, len(state.units))
    return _driver(shape, state, recipe, updates, streams, capture), capture


def broken(
    shape: ModelShape, state: TrainState, recipe: Recipe, error: BaseException, good_calls: int
) -> Walk:
    """Return a walk whose engine dies after some updates; the tightest slots there are."""
    updates, streams = Updates(len(state.units)), Streams.of(CPU)
    adamw = BrokenAdamW("broken", None, 1, error, good_calls, [])
    sizes = [unit.elements * 4 for unit in state.units]
    optimizer = AsyncOptimizer(
        updates=updates,
        streams=streams,
        engines={"cpu": CpuEngine(state, updates, adamw)},
        sharing=FixedSharing(["cpu"] * len(sizes)),
        host_slots=None if recipe.clip else SlotPool(_rooms([max(sizes)]), updates.check),
        waiting=_rooms(sizes) if recipe.clip else None,
    )
    return Walk(_driver(shape, state, recipe, updates, streams, optimizer), updates, optimizer)


def _rooms(sizes: Sequence[int]) -> list[Tensor]:
    return [torch.empty(size, dtype=torch.uint8) for size in sizes]


def _driver(
    shape: ModelShape,
    state: TrainState,
    recipe: Recipe,
    updates: Updates,
    streams: Streams,
    optimizer: AsyncOptimizer,
) -> FullDriver:
    dtype = state.form.compute_dtype
    weights: Weights = ResidentWeights(
        [state.weights(layer) for layer in range(shape.num_layers)],
        streams.compute,
        updates.await_unit,
        lambda _: None,
    )
    if recipe.weights == "slide":
        weights = WeightRing(
            slots=recipe.slots,
            elements=shape.layer_params,
            dtype=dtype,
            device=CPU,
            streams=streams,
            source=state.weights,
            ready=updates.is_ready,
            await_ready=lambda layer: streams.h2d.wait(updates.await_unit(layer)),
        )
    grads = [torch.full((shape.layer_params,), torch.nan, dtype=dtype) for _ in range(1)]
    window = Window(
        weights=weights,
        grads=SlotPool(grads, updates.check),
        wide_grad=None if dtype == torch.float32 else torch.empty(shape.layer_params),
        ends=TrainedEnds(shape, state, streams, updates, optimizer, CPU),
        optimizer=optimizer,
        updates=updates,
        streams=streams,
        prefetch=recipe.slots - 1,
    )
    return FullDriver(shape, window, layer_attention(shape, CPU, dtype), lambda _: DeviceRows())
