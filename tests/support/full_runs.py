"""Small full fine-tunings: a family's tiny model, its trained state, and steps over random rows."""

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.batch import PackedBatch, pack_rows
from slidepack.engine.model.layers import layer_over
from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.nvme.transport import Transport
from slidepack.engine.shape import ModelShape, read_shape
from slidepack.engine.sliding.build import FullSetup, FullTrainer, build_full
from slidepack.engine.sliding.full_driver import StepResult
from slidepack.engine.sliding.sharing import EngineName, Sharing
from slidepack.engine.sliding.state import MomentFormat, StateFormat, TrainState, units_of
from slidepack.engine.sliding.tier_layout import spread
from slidepack.engine.sliding.tier_store import TierSetup
from slidepack.engine.sliding.updates import StepSettings
from slidepack.kernels import AdamWState, adamw_scalars
from support.families import tiny_family
from support.packing import random_rows

CPU: Final = torch.device("cpu")
GROUPS: Final = ((9, 4), (17, 2, 5), (12, 8), (3, 6))
"""Lengths of a step's rows by micro-batch, unequal in tokens and in supervised tokens; some rows
are longer than the families' windows."""
MAX_TOKENS: Final = sum(map(sum, GROUPS))
BETA1: Final = 0.9
BETA2: Final = 0.999
EPS: Final = 1e-5
"""Large: with 1e-8 an element whose gradients are rounding moves by the whole rate either way, and
which of them do differs from one CPU to the next."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a run is laid out; what its numbers depend on comes first."""

    split: bool = False
    moments: MomentFormat = "fp32"
    micro: Literal[1, 4] = 1
    clip: float = 0.0
    lr: float = 1e-2
    weight_decay: float = 0.1
    weights: Literal["slide", "resident"] = "slide"
    rows: Literal["device", "host"] = "device"
    cpu_share: float | None = 1.0
    slots: int = 2
    grad_slots: int = 1
    device: torch.device = CPU
    tier: "Tier | None" = None

    @property
    def form(self) -> StateFormat:
        """How the state is stored."""
        return StateFormat(split=self.split, moments=self.moments)

    def resident(self) -> "Recipe":
        """Return the same numbers without anything that slides."""
        return replace(self, weights="resident", rows="device", grad_slots=2)


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Which shares of a run are on a drive."""

    moments: float = 0.0
    master: float = 0.0
    rows: float = 0.0
    chunk: int = 8192
    stages: int = 3
    folders: tuple[Path, ...] = ()
    transport: Callable[[], Transport] = RingTransport

    def options(self, shape: ModelShape) -> dict[str, Any]:
        """Return what a trainer is told of it."""
        return {
            "state_stages": self.stages,
            "tier_rows": _chosen(shape.num_layers, self.rows),
        }

    def setup(self, units: int) -> TierSetup:
        """Return what a state is told of it; without folders, they are new ones."""
        return TierSetup(
            folders=self.folders or (Path(tempfile.mkdtemp(prefix="slidepack-tier-")),),
            moments=_chosen(units, self.moments),
            master=_chosen(units, self.master),
            transport=self.transport(),
            chunk=self.chunk,
        )


def _chosen(count: int, share: float) -> frozenset[int]:
    return frozenset(index for index, chosen in enumerate(spread(count, share)) if chosen)


@dataclass
class Outcome:
    """What a run left behind."""

    results: list[StepResult]
    evaluation: float
    states: list[AdamWState] = field(repr=False)

    @property
    def norms(self) -> list[float]:
        """Gradient norms of the steps."""
        return [result.grad_norm for result in self.results]


@functools.cache
def cache_folder() -> Path:
    """Return a folder of compiled libraries that this process's tests share."""
    return Path(tempfile.mkdtemp(prefix="slidepack-adamw-"))


@functools.cache
def family(name: str, tied: bool) -> tuple[PreTrainedModel, ModelShape]:
    """Return a family's tiny model, not to be changed, and its shape."""
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_family(Path(folder), name, tied=tied)
        return model, read_shape(Path(folder))


def state_of(model: PreTrainedModel, shape: ModelShape, recipe: Recipe) -> TrainState:
    """Return a model's weights as trained state, moments zero."""
    units, tier = units_of(shape), recipe.tier
    state = TrainState(
        units,
        recipe.form,
        pin=recipe.device.type == "cuda",
        tier=None if tier is None else tier.setup(len(units)),
    )
    weights = {path: parameter.detach() for path, parameter in model.named_parameters()}
    for path, (unit, start) in _places(shape).items():
        state.write(unit, start, weights[path])
    return state


def weight_in(state: TrainState, shape: ModelShape, path: str, like: Tensor) -> Tensor:
    """Return the master of the weight of this Hugging Face name."""
    unit, start = _places(shape)[path]
    return state.read(unit, start, like.numel()).view(like.shape)


def moments_in(
    state: TrainState, shape: ModelShape, path: str, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return both moments of the weight of this Hugging Face name."""
    unit, start = _places(shape)[path]
    part = state.states[unit].part(start, start + like.numel())
    return part.exp_avg.view(like.shape), part.exp_avg_sq.view(like.shape)


def _places(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Return (unit, first element) of every weight by its Hugging Face name."""
    places = {}
    for layer in range(shape.num_layers):
        named = layer_over(torch.empty(shape.layer_params), shape).named
        for name, view in named.items():
            places[f"model.layers.{layer}.{name}"] = (layer, int(view.storage_offset()))
    table = shape.vocab * shape.hidden
    places["model.embed_tokens.weight"] = (shape.num_layers, 0)
    last = shape.num_layers
    if not shape.tied_head:
        last += 1
        places["lm_head.weight"] = (last, 0)
    places["model.norm.weight"] = (last, table)
    return places


def rows_of(shape: ModelShape, step: int) -> list[list[EncodedRow]]:
    """Return a step's rows, one list for each of four micro-batches."""
    lengths = [length for group in GROUPS for length in group]
    rows = iter(random_rows(tuple(lengths), shape.vocab, seed=step))
    return [[next(rows) for _ in group] for group in GROUPS]


def batches_of(shape: ModelShape, step: int, recipe: Recipe) -> list[PackedBatch]:
    """Return a step's rows, packed into as many micro-batches as the recipe has."""
    groups = rows_of(shape, step)
    if recipe.micro == 1:
        groups = [[row for group in groups for row in group]]
    dtype = recipe.form.compute_dtype
    return [pack_rows(group, shape, recipe.device, dtype) for group in groups]


def settings_of(step: int, recipe: Recipe) -> StepSettings:
    """Return AdamW's numbers of a step, the first is 1."""
    scalars = adamw_scalars(
        torch.tensor(step),
        torch.tensor(1.0),
        lr=recipe.lr,
        beta1=BETA1,
        beta2=BETA2,
        weight_decay=recipe.weight_decay,
    )
    return StepSettings(
        scalars_host=scalars,
        scalars_device=scalars.to(recipe.device),
        beta1=BETA1,
        beta2=BETA2,
        eps=EPS,
    )


class TakingTurns:
    """Gives layers to the engines in turn, so that each layer changes hands from step to step."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._picked = 0

    def pick(self, unit: int, elements: int) -> EngineName:
        """Return the engine after the last one, twice every third time."""
        del elements
        if unit >= self._layers:
            return "gpu"
        self._picked += 1 + (self._picked % 3 == 0)
        return "cpu" if self._picked % 2 else "gpu"

    def book(self, name: EngineName, elements: int) -> None:
        """Do nothing."""


def trainer_of(
    shape: ModelShape, state: TrainState, recipe: Recipe, sharing: Sharing | None = None
) -> FullTrainer:
    """Return a trainer over a state."""
    setup = FullSetup(
        device=recipe.device,
        weights=recipe.weights,
        weight_slots=recipe.slots,
        grad_slots=recipe.grad_slots,
        host_grad_slots=recipe.grad_slots,
        cpu_share=recipe.cpu_share,
        rows=recipe.rows,
        max_tokens=MAX_TOKENS,
        max_micro_tokens=MAX_TOKENS if recipe.micro == 1 else max(map(sum, GROUPS)),
        accumulate=recipe.micro > 1,
        clip=recipe.clip > 0,
        cpu_threads=2,
        cache=cache_folder(),
        **({} if recipe.tier is None else recipe.tier.options(shape)),
    )
    return build_full(shape, state, setup, sharing=sharing)


def steps(
    trainer: FullTrainer, shape: ModelShape, recipe: Recipe, numbers: Sequence[int]
) -> list[StepResult]:
    """Run the steps of these numbers, the first is 1."""
    return [
        trainer.driver.train_step(
            batches_of(shape, number, recipe), settings_of(number, recipe), recipe.clip
        )
        for number in numbers
    ]


def run(
    model: PreTrainedModel,
    shape: ModelShape,
    recipe: Recipe,
    num_steps: int = 20,
    *,
    turns: bool = False,
) -> Outcome:
    """Train a model's weights, evaluating half way and at the end.

    Args:
        model: where the weights start.
        shape: its sizes.
        recipe: of the run.
        num_steps: how many.
        turns: let layers change engines from step to step, whatever the recipe says.
    """
    state = state_of(model, shape, recipe)
    trainer = trainer_of(shape, state, recipe, TakingTurns(shape.num_layers) if turns else None)
    results = []
    try:
        for number in range(1, num_steps + 1):
            results += steps(trainer, shape, recipe, [number])
            if number == num_steps // 2:
                # An evaluation leaves other layers in the ring than a step does.
                trainer.driver.evaluate(batches_of(shape, 0, recipe))
        evaluation = trainer.driver.evaluate(batches_of(shape, 0, recipe)).total
        trainer.updates.drain()
        states = [state.whole(unit) for unit in range(len(state.units))]
    finally:
        trainer.close()
        state.close()
    return Outcome(results, evaluation, states)


def tensors_of(state: AdamWState) -> list[Tensor]:
    """Return the tensors of a unit's state."""
    parts = (
        state.master,
        state.remainder,
        state.exp_avg,
        state.exp_avg_sq,
        state.exp_avg_scale,
        state.exp_avg_sq_scale,
    )
    return [part for part in parts if part is not None]


def copy_of(state: AdamWState) -> AdamWState:
    """Return a state of its own memory."""

    def copied(part: Tensor | None) -> Tensor | None:
        return None if part is None else part.clone()

    return AdamWState(
        state.master.clone(),
        copied(state.remainder),
        state.exp_avg.clone(),
        state.exp_avg_sq.clone(),
        copied(state.exp_avg_scale),
        copied(state.exp_avg_sq_scale),
    )


def same_bits(one: AdamWState, other: AdamWState) -> bool:
    """Return whether two states hold the same bits, those of NaNs among them."""
    pairs = zip(tensors_of(one), tensors_of(other), strict=True)
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


def assert_same(one: Outcome, other: Outcome) -> None:
    """Hold two runs to the same bits: every loss and norm, and every unit's state at the end."""
    assert one.results == other.results
    assert one.evaluation == other.evaluation
    units = [same_bits(a, b) for a, b in zip(one.states, other.states, strict=True)]
    assert all(units), units
