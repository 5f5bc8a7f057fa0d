"""Packed rows of LoRA lanes, drawn lane by lane: a lane is the same alone and in any pack."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from slidepack.kernels.lora.dropout import LoraDropout, dropout_tables
from slidepack.kernels.lora.layout import LoraLayout, LoraWeights
from slidepack.kernels.lora.linear import LoraCall, LoraLinearFunction
from slidepack.kernels.lora.tables import LoraTables, lora_tables
from slidepack.kernels.tiles import LoraTiles

CPU: Final = torch.device("cpu")
GAP: Final = 16
"""Elements of NaN behind each block of a pool: nobody's, so neither read nor written."""
SAMPLE_TOKENS: Final = 5
Results = list[dict[str, Tensor]]
"""Of each lane: its rows of `y` and `dx`, and the gradients `a0`, `b0`, `a1` ... of its parts."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One adapter and its tokens: `first` to `end` of the `tokens` of its step."""

    key: int
    """Decides its numbers and its dropout."""
    ranks: tuple[int, ...]
    tokens: int
    rate: float = 0.0
    first: int = 0
    end: int | None = None

    @property
    def rows(self) -> slice:
        """Its tokens of the row, among the tokens of its step."""
        return slice(self.first, self.first + self.length)

    @property
    def length(self) -> int:
        """How many tokens it has in the row."""
        return (self.tokens if self.end is None else self.end) - self.first

    @property
    def seed(self) -> int:
        """Its dropout's seed, of 63 bits."""
        return (self.key + 1) * 0x9E3779B97F4A7C15 % 2**63

    @property
    def scale(self) -> float:
        """A power of two, so that it is the same in every dtype."""
        return 2.0 ** (self.key % 3 - 1)


@dataclass(frozen=True, kw_only=True)
class LoraCase:
    """A linear and the lanes of one packed row."""

    name: str
    in_width: int
    part_widths: tuple[int, ...]
    lanes: tuple[Lane, ...]
    dropout: bool = False
    site: int = 3
    integers: bool = False
    """Small integers: sums of them are exact in fp64, whatever their order."""
    base: bool = True
    """Without it the base weight is 0: its product, whose order is a library's, adds nothing."""
    sizes: LoraTiles | None = None

    @property
    def layout(self) -> LoraLayout:
        """The adapters of the lanes."""
        return LoraLayout(
            in_width=self.in_width,
            part_widths=self.part_widths,
            ranks=tuple(lane.ranks for lane in self.lanes),
        )

    @property
    def bounds(self) -> tuple[int, ...]:
        """Offsets of the lanes' tokens."""
        return tuple(itertools.accumulate((lane.length for lane in self.lanes), initial=0))

    def alone(self, index: int) -> "LoraCase":
        """Return the same linear with one of the lanes."""
        return replace(self, lanes=(self.lanes[index],))


@dataclass(frozen=True, kw_only=True)
class LoraRow:
    """The tensors of a case, in one dtype on one device."""

    case: LoraCase
    tables: LoraTables
    weights: LoraWeights
    x: Tensor
    weight: Tensor
    dy: Tensor
    dropout: LoraDropout | None

    def run(self, *, fused: bool, add: bool = False, want_dx: bool = True) -> Results:
        """Run forward and backward, whatever the device; gradients are in `weights.grads`."""
        call = LoraCall(
            tables=self.tables,
            weights=self.weights,
            add=add,
            dropout=self.dropout,
            site=self.case.site,
            fused=fused,
        )
        x = self.x.clone().requires_grad_(want_dx)
        y = LoraLinearFunction.apply(x, self.weight, self.weights.pool, call)
        y.backward(self.dy)
        dx = x.grad if x.grad is not None else torch.zeros_like(x)
        return self.split(y.detach(), dx)

    def split(self, y: Tensor, dx: Tensor) -> Results:
        """Return what belongs to each lane."""
        results = []
        for index, start in enumerate(self.weights.starts):
            rows = self.tables.rows(index)
            found = {"y": y[rows], "dx": dx[rows]}
            pairs = self.tables.layout.views(self.weights.grads, start, index)
            for part, (a, b) in enumerate(pairs):
                found |= {f"a{part}": a.clone(), f"b{part}": b.clone()}
            results.append(found)
        return results

    def padding(self) -> Tensor:
        """Return the gradients of nobody."""
        owned = torch.zeros_like(self.weights.grads, dtype=torch.bool)
        for index, start in enumerate(self.weights.starts):
            for pair in self.tables.layout.views(owned, start, index):
                for view in pair:
                    view.fill_(True)
        return self.weights.grads[~owned]


@dataclass(frozen=True)
class Drawing:
    """The numbers of a case, in fp64 on the CPU."""

    case: LoraCase
    pool: Tensor
    starts: tuple[int, ...]
    x: Tensor
    weight: Tensor
    dy: Tensor
    counters: tuple[Tensor, Tensor] = field(repr=False)
    """Samples and positions."""

    def row(
        self,
        dtype: torch.dtype,
        device: torch.device = CPU,
        *,
        rounded: torch.dtype | None = None,
        side_stream: torch.cuda.Stream | None = None,
    ) -> LoraRow:
        """Return the tensors, rounded through another dtype where that is to be judged."""
        case = self.case

        def to(tensor: Tensor) -> Tensor:
            return tensor.to(rounded or dtype).to(device, dtype)

        wide = torch.promote_types(dtype, torch.float32)
        weights = LoraWeights(
            pool=to(self.pool).requires_grad_(),
            grads=torch.full_like(self.pool, float("nan"), dtype=wide, device=device),
            starts=self.starts,
            offsets=torch.tensor(self.starts, dtype=torch.int64, device=device),
            scales=torch.tensor([lane.scale for lane in case.lanes], device=device),
        )
        dropout = None
        if case.dropout:
            samples, positions = (counter.to(device) for counter in self.counters)
            seeds = [lane.seed for lane in case.lanes]
            rates = [lane.rate for lane in case.lanes]
            dropout = dropout_tables(seeds, rates, samples, positions)
        return LoraRow(
            case=case,
            tables=lora_tables(
                case.layout, case.bounds, device, sizes=case.sizes, side_stream=side_stream
            ),
            weights=weights,
            x=to(self.x),
            weight=to(self.weight),
            dy=to(self.dy),
            dropout=dropout,
        )


def draw(case: LoraCase) -> Drawing:
    """Draw the numbers of a case: a lane's depend on its key and the widths alone."""
    layout = case.layout
    starts, xs, dys, blocks, samples = [], [], [], [], []
    at = 0
    for index, lane in enumerate(case.lanes):
        generator = torch.Generator().manual_seed(1000 + lane.key)
        xs.append(_numbers(case, generator, lane.tokens, case.in_width)[lane.rows])
        dys.append(_numbers(case, generator, lane.tokens, layout.out_width)[lane.rows])
        block = torch.full((layout.block_elements(index) + GAP,), float("nan"), dtype=torch.float64)
        for rank, (a, b) in zip(lane.ranks, layout.views(block, 0, index), strict=True):
            for matrix, shrink in ((a, case.in_width), (b, rank)):
                numbers = _numbers(case, generator, *matrix.shape)
                matrix.copy_(numbers if case.integers else numbers * max(shrink, 1) ** -0.5)
        starts.append(at)
        at += block.numel()
        blocks.append(block)
        samples.append(torch.arange(lane.tokens)[lane.rows])
    weight = _numbers(case, torch.Generator().manual_seed(7), layout.out_width, case.in_width)
    weight *= case.base if case.integers else case.base * case.in_width**-0.5
    token = torch.cat(samples).int()
    counters = (token // SAMPLE_TOKENS, token % SAMPLE_TOKENS)
    pool = torch.cat(blocks)
    return Drawing(case, pool, tuple(starts), torch.cat(xs), weight, torch.cat(dys), counters)


def _numbers(case: LoraCase, generator: torch.Generator, rows: int, width: int) -> Tensor:
    if case.integers:
        return torch.randint(-3, 4, (rows, width), generator=generator, dtype=torch.float64)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64)
