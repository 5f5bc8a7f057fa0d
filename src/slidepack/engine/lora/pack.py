"""Many LoRA lanes in one pass over one frozen base; each one trains as it would alone.

A lane's rows, dropout, loss, gradient, clipping and AdamW step depend on nothing of the others.
In exact mode not even a rounding does: every row is filled up to the same number of tokens, so the
products of the base have the same shape whoever is in them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.lanes import LaneAdapters, step_seed
from slidepack.engine.lora.optimizer import gradient_norm, optimizer_step
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.lora.rows import LaneRow, Piece, lane_row, micro_steps, supervised_tokens
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
    ) -> None:
        """Begin without a lane.

        Args:
            decoder: the frozen base.
            choices: what each layer's attention computes.
            activations: `keep` or `recompute` for each layer.
            max_tokens: of a micro-batch, unless a single row is longer.
            check_stop: may raise to abandon a pass; lanes only change once all passes are done.
            exact_tokens: tokens that every row is filled up to, more than a micro-batch has; 0
                for rows as long as they are.

        Raises:
            ValueError: `exact_tokens` leaves no room for padding.
        """
        if exact_tokens and exact_tokens <= max_tokens:
            raise ValueError(f"exact_tokens is {exact_tokens}; use more than {max_tokens}")
        self.max_tokens = max_tokens
        self.pool = LanePool(decoder.device, decoder.dtype)
        self._decoder = decoder
        self._driver = LaneDriver(decoder, choices, activations, check_stop)
        self._exact_tokens = exact_tokens
        self._lanes: dict[str, LoraArena] = {}
        self._adapters: dict[tuple[str, ...], LaneAdapters] = {}

    @property
    def lanes(self) -> Mapping[str, LoraArena]:
        """The resident lanes, in the order in which they joined."""
        return self._lanes

    def join(self, name: str, method: LoraMethod, seed: int) -> LoraArena:
        """Give a lane a seat, with a fresh adapter; a checkpoint may then overwrite it.

        Raises:
            ValueError: a lane of this name is here.
            torch.OutOfMemoryError: there is no room; the others are as they were.
        """
        if name in self._lanes:
            raise ValueError(f"{name} is in the pack already")
        arena = LoraArena(self._decoder.shape, method, self.pool)
        arena.initialise(seed)
        self._lanes[name] = arena
        self._adapters.clear()
        return arena

    def leave(self, name: str) -> None:
        """Free a lane's seat."""
        self._lanes.pop(name).close()
        self._adapters.clear()

    def step(self, work: Mapping[str, LaneStep]) -> dict[str, StepOutcome]:
        """Do one optimizer step of each lane named.

        Returns:
            What each lane measured. A lane whose gradient is no number is left as it is, and so
            are lanes that are not named.

        Raises:
            torch.OutOfMemoryError: a micro-batch does not fit; no lane has changed.
        """
        counted = {name: supervised_tokens(lane.rows) for name, lane in work.items()}
        adapters = self.adapters(tuple(work))
        seeds = [step_seed(lane.seed, lane.step) for lane in work.values()]
        losses = torch.zeros(len(work), dtype=torch.float64, device=self._decoder.device)
        steps = micro_steps([lane.rows for lane in work.values()], self.max_tokens)
        for number, pieces in enumerate(steps):
            row = self._row(pieces, list(counted.values()))
            dropout = adapters.dropout(row, seeds)
            losses += self._driver.train(
                row, adapters.lane_pass(row.bounds, first=number == 0, dropout=dropout)
            )
        norms = torch.stack([gradient_norm(self._lanes[name]) for name in work]).tolist()
        outcomes = {}
        for (name, lane), mean, norm in zip(work.items(), losses.tolist(), norms, strict=True):
            optimizer_step(self._lanes[name], lane.optim, lane.step, lane.total_steps, norm)
            outcomes[name] = StepOutcome(LossSum(mean * counted[name], counted[name]), norm)
        return outcomes

    def shrink(self, longest: int) -> bool:
        """Halve the micro-batches, down to the longest row; return whether that was possible."""
        if self.max_tokens <= longest:
            return False
        self.max_tokens = max(longest, self.max_tokens // 2)
        return True

    def evaluate(self, rows: Mapping[str, Sequence[EncodedRow]]) -> dict[str, LossSum]:
        """Return the summed loss of each lane's rows, without dropout."""
        adapters = self.adapters(tuple(rows))
        total = torch.zeros(len(rows), dtype=torch.float64, device=self._decoder.device)
        for pieces in micro_steps(list(rows.values()), self.max_tokens):
            # Sums, not means: a token weighs one.
            row = self._row(pieces, [1] * len(rows))
            total += self._driver.evaluate(row, adapters.lane_pass(row.bounds))
        return {
            name: LossSum(value, supervised_tokens(lane_rows))
            for (name, lane_rows), value in zip(rows.items(), total.tolist(), strict=True)
        }

    def adapters(self, names: tuple[str, ...]) -> LaneAdapters:
        """Return some lanes' adapters, in this order."""
        found = self._adapters.get(names)
        if found is None:
            arenas = [self._lanes[name] for name in names]
            found = self._adapters[names] = LaneAdapters(self._decoder.shape, arenas)
        return found

    def _row(self, pieces: Sequence[Piece | None], denominators: Sequence[int]) -> LaneRow:
        decoder = self._decoder
        return lane_row(
            pieces,
            denominators,
            decoder.shape,
            decoder.device,
            decoder.dtype,
            pad_to=self._exact_tokens,
        )
