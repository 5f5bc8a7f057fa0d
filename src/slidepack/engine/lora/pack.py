"""Many LoRA lanes in one pass over one frozen base; each one trains as it would alone.

A lane's rows, dropout, loss, gradient, clipping and AdamW step depend on nothing of the others.
In exact mode not even a rounding does: every row is filled up to the same number of tokens, so the
products of the base have the same shape whoever is in them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.arena import LoraArena, lane_layer_elements
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.lanes import LaneAdapters, LaneWork, MicroBatch, step_seed
from slidepack.engine.lora.passes import LaneUpdate, Passes, ResidentPasses
from slidepack.engine.lora.rows import lane_row, micro_steps, supervised_tokens
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loss import LossSum

__all__ = ["LaneStep", "Pack", "StepOutcome"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneStep:
    """One optimizer step of one lane."""

    rows: Sequence[EncodedRow]
    optim: OptimSpec
    step: int
    """Steps done before it."""
    total_steps: int
    seed: int
    """Of the lane, for its dropout."""
    carried_steps: int = 0
    """That AdamW's moments had seen before the lane's first step, in a job that it continues."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a lane's step measured."""

    loss: LossSum
    grad_norm: float
    """Before clipping. Where it is no number, the lane was left as it is."""


class Pack:
    """The lanes that are resident, and the passes over them."""

    def __init__(
        self,
        decoder: Decoder,
        choices: LayerAttention,
        activations: Sequence[ActivationPolicy],
        max_tokens: int,
        check_stop: Callable[[], None] = lambda: None,
        *,
        exact_tokens: int = 0,
        passes: Passes[Any] | None = None,
    ) -> None:
        """Begin without a lane.

        Args:
            decoder: the frozen base.
            choices: what each layer's attention computes.
            activations: `keep` or `recompute` for each layer.
            max_tokens: of a micro-batch, unless a single row is longer.
            check_stop: may raise to abandon a pass; lanes only change once all passes are done.
            exact_tokens: tokens that every row is filled up to, as many as a micro-batch may have
                or more; 0 for rows as long as they are.
            passes: where base or lanes slide; None keeps both where the passes run.

        Raises:
            ValueError: `exact_tokens` is less than a micro-batch may have.
        """
        if exact_tokens and exact_tokens < max_tokens:
            raise ValueError(f"exact_tokens is {exact_tokens}; use {max_tokens} or more")
        self.max_tokens = max_tokens
        self._decoder = decoder
        self._passes: Passes[Any] = passes or ResidentPasses(
            decoder, LaneDriver(decoder, choices, activations, check_stop)
        )
        self._exact_tokens = exact_tokens
        self._lanes: dict[str, LoraArena] = {}
        self._adapters: dict[tuple[str, ...], LaneAdapters] = {}
        self._prepared: tuple[tuple[object, ...], list[Any]] | None = None

    @property
    def lanes(self) -> Mapping[str, LoraArena]:
        """The resident lanes, in the order in which they joined."""
        return self._lanes

    def expect(self, methods: Sequence[LoraMethod]) -> None:
        """Make room for lanes that are about to join, so that they do not move each other."""
        self._forget_memory()
        shape = self._decoder.shape
        self._passes.expect(sum(lane_layer_elements(shape, method) for method in methods))

    @property
    def recorded_passes(self) -> int:
        """How many kinds of passes are replayed as a whole instead of launch by launch."""
        return self._passes.recorded_passes

    def join(self, name: str, method: LoraMethod, seed: int) -> LoraArena:
        """Give a lane a seat, with a fresh adapter; a checkpoint may then overwrite it.

        Raises:
            ValueError: a lane of this name is here.
            torch.OutOfMemoryError: there is no room; the others are as they were.
        """
        if name in self._lanes:
            raise ValueError(f"{name} is in the pack already")
        self._forget_memory()
        arena = self._passes.new_lane(method)
        try:
            arena.initialise(seed)
        except BaseException:
            arena.close()
            raise
        self._lanes[name] = arena
        return arena

    def leave(self, name: str) -> None:
        """Free a lane's seat."""
        self._forget_memory()
        self._lanes.pop(name).close()

    def _forget_memory(self) -> None:
        """Let go of whatever says where lanes are: they may move, even where a join then fails."""
        self._adapters.clear()
        self._prepared = None
        self._passes.forget()

    def prepare(self, work: Mapping[str, LaneStep]) -> None:
        """Build the rows of a step that is likely to come next, while the device is at work."""
        self._prepared = (self._key(work), self._micros(work))

    def step(
        self,
        work: Mapping[str, LaneStep],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> dict[str, StepOutcome]:
        """Do one optimizer step of each lane named.

        Args:
            work: of each lane.
            meanwhile: called while the device is at work; it may `prepare` the next step.

        Returns:
            What each lane measured. A lane whose gradient is no number is left as it is, and so
            are lanes that are not named.

        Raises:
            torch.OutOfMemoryError: a micro-batch does not fit; no lane has changed.
        """
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] == self._key(work):
            micros = prepared[1]
        else:
            micros = self._micros(work)
        losses, norms = self._passes.train(micros, self.adapters(tuple(work)), meanwhile)
        counted = {name: supervised_tokens(lane.rows) for name, lane in work.items()}
        self._passes.update(
            [
                LaneUpdate(
                    arena=self._lanes[name],
                    optim=lane.optim,
                    step=lane.step,
                    total_steps=lane.total_steps,
                    norm=norm,
                    carried_steps=lane.carried_steps,
                )
                for (name, lane), norm in zip(work.items(), norms, strict=True)
                if math.isfinite(norm)
            ]
        )
        return {
            name: StepOutcome(LossSum(mean * counted[name], counted[name]), norm)
            for name, mean, norm in zip(work, losses, norms, strict=True)
        }

    def shrink(self, longest: int) -> bool:
        """Halve the micro-batches, down to the longest row; return whether that was possible.

        It never is in exact mode: rows are filled up whatever is in them.
        """
        if self._exact_tokens or self.max_tokens <= longest:
            return False
        self.max_tokens = max(longest, self.max_tokens // 2)
        return True

    def evaluate(self, rows: Mapping[str, Sequence[EncodedRow]]) -> dict[str, LossSum]:
        """Return the summed loss of each lane's rows, without dropout."""
        adapters = self.adapters(tuple(rows))
        decoder = self._decoder
        # Sums, not means: a token weighs one.
        laid = [
            lane_row(
                pieces,
                [1] * len(rows),
                decoder.shape,
                decoder.device,
                decoder.dtype,
                pad_to=self._exact_tokens,
            )
            for pieces in micro_steps(list(rows.values()), self.max_tokens)
        ]
        micros = [MicroBatch(row, adapters.lane_pass(row.bounds)) for row in laid]
        totals = self._passes.evaluate(micros, adapters)
        return {
            name: LossSum(total, supervised_tokens(lane_rows))
            for (name, lane_rows), total in zip(rows.items(), totals, strict=True)
        }

    def adapters(self, names: tuple[str, ...]) -> LaneAdapters:
        """Return some lanes' adapters, in this order."""
        found = self._adapters.get(names)
        if found is None:
            arenas = [self._lanes[name] for name in names]
            found = self._adapters[names] = LaneAdapters(
                self._decoder.shape,
                arenas,
                self._decoder.device,
                self._passes.serve,
                self._decoder.refetch,
            )
        return found

    def _key(self, work: Mapping[str, LaneStep]) -> tuple[object, ...]:
        """Return what the rows of a step follow from."""
        lanes = [(name, lane.step, lane.seed) for name, lane in work.items()]
        return (self.max_tokens, self.adapters(tuple(work)), *lanes)

    def _micros(self, work: Mapping[str, LaneStep]) -> list[Any]:
        """Return the micro-batches of a step."""
        adapters = self.adapters(tuple(work))
        seeds = [step_seed(lane.seed, lane.step) for lane in work.values()]
        counted = [supervised_tokens(lane.rows) for lane in work.values()]
        steps = micro_steps([lane.rows for lane in work.values()], self.max_tokens)
        return [
            self._passes.ready(
                LaneWork(
                    pieces=pieces,
                    denominators=counted,
                    seeds=seeds,
                    first=number == 0,
                    exact_tokens=self._exact_tokens,
                    most_tokens=self.max_tokens,
                ),
                adapters,
            )
            for number, pieces in enumerate(steps)
        ]
