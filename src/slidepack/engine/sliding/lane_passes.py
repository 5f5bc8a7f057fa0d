"""Packed LoRA over a base that does not fit the card: layers slide through it, and so do the lanes.

A step walks the layers as full fine-tuning does: every micro-batch of layer i, then layer i + 1,
and the same way down. On the way down the micro-batches pass in their own order, as a lane's
gradient must be the sum that a resident walk makes; on the way up nothing is added, and the order
alternates (see `walk`). The base and the lanes' weights of a layer come to the card in slots; the
lanes' gradient of a layer goes to host memory, where its state is. The updates wait for each lane's
norm, and run on the CPU beside the next step's forward pass.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.head import lane_losses, train_head
from slidepack.engine.lora.lanes import LaneAdapters, LaneWork, MicroBatch, Serve
from slidepack.engine.lora.optimizer import lane_norms, squared_norms
from slidepack.engine.lora.passes import LaneUpdate
from slidepack.engine.model.ends import embed
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder, layer_over
from slidepack.engine.model.packed_layer import packed_layer
from slidepack.engine.sliding.lane_engine import LaneEngine
from slidepack.engine.sliding.lane_slots import LaneSlots
from slidepack.engine.sliding.rows import GRADIENT, Rows
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.walk import fetch_down, fetch_up, snake, turns
from slidepack.engine.sliding.weight_ring import WeightRing
from slidepack.kernels import LoraWeights, Readback

__all__ = ["SlidingPasses"]


class SlidingPasses:
    """Passes over layers that slide."""

    def __init__(
        self,
        decoder: Decoder,
        base: WeightRing,
        slots: LaneSlots,
        engine: LaneEngine,
        choices: LayerAttention,
        rows: Callable[[Sequence[int]], Rows],
        streams: Streams,
        prefetch: int,
        max_tokens: int,
        check_stop: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin without a lane.

        Args:
            decoder: its ends are on the card; its layers are where `base` fetches them from.
            base: the window of layers.
            slots: of the lanes.
            engine: updates the lanes in host memory.
            choices: what each layer's attention computes.
            rows: makes the keeper of the rows of micro-batches of these sizes.
            streams: of the run.
            prefetch: layers fetched ahead.
            max_tokens: that `rows` has room for.
            check_stop: called before each layer of a pass; may raise to abandon it. Lanes only
                change in their update, so nothing is lost.
        """
        self._decoder = decoder
        self._base = base
        self._slots = slots
        self._engine = engine
        self._choices = choices
        self._rows = rows
        self._streams = streams
        self._prefetch = prefetch
        self._max_tokens = max_tokens
        self._readback = Readback()
        self._check_stop = check_stop

    @property
    def serve(self) -> Serve:
        """Brings the lanes to the card for passes that are not these."""
        return self._slots.serve

    def ready(self, work: LaneWork, adapters: LaneAdapters) -> MicroBatch:
        """Lay out a micro-batch of a step."""
        return work.bind(adapters, self._decoder.shape, self._decoder.dtype)

    def forget(self) -> None:
        """Do nothing: a pass asks anew where the lanes are."""

    @property
    def recorded_passes(self) -> int:
        """None: layers and lanes are elsewhere in every pass."""
        return 0

    def expect(self, layer_elements: int) -> None:
        """Make room for lanes that are about to come, where there is any."""
        self._engine.settle()
        for pool in self._slots.pools:
            pool.reserve(layer_elements)

    def new_lane(self, method: LoraMethod) -> LoraArena:
        """Make room for a lane, all zero."""
        self._engine.settle()
        return LoraArena(self._decoder.shape, method, self._slots.pools, self._engine.settle)

    def train(
        self,
        micros: Sequence[MicroBatch],
        lanes: LaneAdapters,
        meanwhile: Callable[[], None],
    ) -> tuple[list[float], list[float]]:
        """Run the micro-batches of a step, layer by layer."""
        with self._walk(micros, lanes) as keeper:
            self._forward(micros, keeper)
            losses = self._head(micros, keeper)
            layers = range(self._decoder.shape.num_layers)
            squares = [self._backward(layer, micros, keeper) for layer in reversed(layers)]
        meanwhile()
        read = self._readback.read(torch.cat([losses, torch.stack(squares, dim=1).flatten()]))
        squares_NL = torch.tensor(read[len(lanes) :], dtype=torch.float64)
        return read[: len(lanes)], lane_norms(squares_NL.view(len(lanes), len(layers)))

    def update(self, updates: Sequence[LaneUpdate]) -> None:
        """Start the optimizer steps: the next pass waits for each layer's."""
        self._engine.start(updates)

    @torch.no_grad()
    def evaluate(self, micros: Sequence[MicroBatch], lanes: LaneAdapters) -> list[float]:
        """Return each lane's weighted loss, without gradients."""
        total = torch.zeros(len(lanes), dtype=torch.float64, device=self._decoder.device)
        for some in self._fitting(micros):
            with self._walk(some, lanes) as keeper:
                self._evaluate(some, keeper, total)
        return self._readback.read(total)

    def _evaluate(self, micros: Sequence[MicroBatch], keeper: Rows, total: Tensor) -> None:
        """Add the lanes' losses to `total`, one micro-batch after the other."""
        self._forward(micros, keeper, keep=False)
        last = self._decoder.shape.num_layers
        losses = {}
        for turn in turns(self._upward(last, len(micros))):
            x = keeper.get((last, turn.micro))
            fetch_up(keeper, last, turn.ahead)
            losses[turn.micro] = lane_losses(x, micros[turn.micro].row, self._decoder)
            keeper.drop((last, turn.micro))
        _add_in_order(total, losses)

    def _fitting(self, micros: Sequence[MicroBatch]) -> Iterator[list[MicroBatch]]:
        """Yield micro-batches in groups that the keeper of rows has room for."""
        group: list[MicroBatch] = []
        tokens = 0
        for micro in micros:
            here = micro.row.batch.num_tokens
            if group and tokens + here > self._max_tokens:
                yield group
                group, tokens = [], 0
            group.append(micro)
            tokens += here
        yield group

    @contextlib.contextmanager
    def _walk(self, micros: Sequence[MicroBatch], lanes: LaneAdapters) -> Iterator[Rows]:
        """Begin a walk; let go of what it holds where it is abandoned."""
        keeper = self._rows([micro.row.batch.num_tokens for micro in micros])
        self._slots.begin(lanes)
        try:
            yield keeper
        except BaseException:
            self._base.abandon()
            self._slots.abandon()
            raise

    def _upward(self, level: int, count: int) -> range:
        """Return the order of the micro-batches on the way up.

        The head begins with the last one: the backward pass begins with the first one, and finds
        its gradient as it was put.
        """
        return snake(level - self._decoder.shape.num_layers, count)

    @torch.no_grad()
    def _forward(self, micros: Sequence[MicroBatch], keeper: Rows, *, keep: bool = True) -> None:
        shape = self._decoder.shape
        count = len(micros)
        for number in self._upward(-1, count):
            x = embed(self._decoder.embedding, micros[number].row.batch.ids, shape)
            keeper.put((0, number), x)
        for layer in range(shape.num_layers):
            flat, weights = self._acquire(layer, step=1)
            for turn in turns(self._upward(layer, count), self._upward(layer + 1, count)):
                self._check_stop()
                number = turn.micro
                x = keeper.get((layer, number))
                fetch_up(keeper, layer, turn.ahead)
                y = self._layer(layer, x, flat, micros[number], weights)
                if keep:
                    keeper.rest((layer, number))
                else:
                    keeper.drop((layer, number))
                keeper.put((layer + 1, number), y)
            self._release(layer)

    def _acquire(self, layer: int, step: int) -> tuple[Tensor, Mapping[str, LoraWeights]]:
        """Return a layer's base and lanes on the card, and fetch those that come next."""
        flat, weights = self._base.acquire(layer), self._slots.acquire(layer)
        for ahead in range(1, self._prefetch + 1):
            following = layer + step * ahead
            if 0 <= following < self._decoder.shape.num_layers:
                self._base.prefetch(following)
                self._slots.prefetch(following)
        return flat, weights

    def _release(self, layer: int) -> None:
        self._base.release(layer)
        self._slots.release(layer)

    def _layer(
        self,
        layer: int,
        x: Tensor,
        flat: Tensor,
        micro: MicroBatch,
        weights: Mapping[str, LoraWeights],
    ) -> Tensor:
        shape = self._decoder.shape
        return packed_layer(
            x,
            layer_over(flat, shape),
            shape,
            micro.row.batch,
            self._choices.at(layer),
            micro.lanes.layer(layer, weights),
        )

    def _head(self, micros: Sequence[MicroBatch], keeper: Rows) -> Tensor:
        """Return the lanes' losses; put the last layer's gradient in the rows."""
        last = self._decoder.shape.num_layers
        lanes = micros[0].row.label_counts.numel()
        total = torch.zeros(lanes, dtype=torch.float64, device=self._decoder.device)
        losses = {}
        for turn in turns(self._upward(last, len(micros)), range(len(micros))):
            number = turn.micro
            x = keeper.get((last, number))
            fetch_down(keeper, last, turn.ahead, is_head=True)
            losses[number], grad = train_head(x, micros[number].row, self._decoder)
            keeper.drop((last, number))
            keeper.put((GRADIENT, number), grad)
        _add_in_order(total, losses)
        return total

    def _backward(self, layer: int, micros: Sequence[MicroBatch], keeper: Rows) -> Tensor:
        """Differentiate one layer; return the squared norm of each lane's part of the gradient."""
        flat, _ = self._acquire(layer, step=-1)
        with self._slots.gradient(layer) as (weights, grads):
            order = range(len(micros))
            for turn in turns(order, order if layer else ()):
                self._check_stop()
                number = turn.micro
                # The embedding below layer 0 is frozen, so nothing asks for that gradient.
                x = keeper.get((layer, number)).detach().requires_grad_(layer > 0)
                dy = keeper.get((GRADIENT, number))
                fetch_down(keeper, layer, turn.ahead)
                y = self._layer(layer, x, flat, micros[number], weights)
                torch.autograd.backward(y, dy)
                keeper.drop((GRADIENT, number))
                keeper.drop((layer, number))
                if layer:
                    assert x.grad is not None
                    keeper.put((GRADIENT, number), x.grad)
            squares = torch.cat([squared_norms(part[None]) for part in self._slots.parts(grads)])
        self._release(layer)
        return squares


def _add_in_order(total: Tensor, losses: Mapping[int, Tensor]) -> None:
    """Add micro-batches' losses in the order of the resident walk, whenever they were made."""
    for number in sorted(losses):
        total += losses[number]
