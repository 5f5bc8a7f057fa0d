"""A frozen linear with many lanes' adapters, against the linear alone and a loop over them."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from slidepack.engine.bench_kernels.measure import Meter
from slidepack.engine.bench_kernels.operation import Prepared, Setting, Sizes
from slidepack.kernels import LoraLayout, LoraTables, LoraWeights, lora_linear, lora_tables
from slidepack.kernels.tiles import LoraTiles

__all__ = ["LoraCase", "LoraShape", "lora_case", "lora_row", "lora_shapes"]

_ADAPTERS: Final = 32
_RANKS: Final = (8, 16, 32, 64, 128)
_TOKENS: Final = (4096, 16384)
_SCALE: Final = 2.0
"""alpha / rank of every adapter."""
_SPREAD: Final = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraShape:
    """Sizes of one packed row and one linear."""

    tokens: int
    in_width: int
    out_width: int
    adapters: int = _ADAPTERS
    """Of mixed ranks and lengths."""

    @property
    def bounds(self) -> list[int]:
        """The N + 1 offsets of the adapters' tokens: lengths in the ratio of 1 to 5."""
        parts = [1 + (7 * i) % 5 for i in range(self.adapters)]
        ends = itertools.accumulate(self.tokens * part // sum(parts) for part in parts)
        return [0, *list(ends)[:-1], self.tokens]

    @property
    def layout(self) -> LoraLayout:
        """The adapters: ranks 8 to 128 in turn."""
        ranks = tuple((_RANKS[i % len(_RANKS)],) for i in range(self.adapters))
        return LoraLayout(in_width=self.in_width, part_widths=(self.out_width,), ranks=ranks)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraCase:
    """Tensors of a shape."""

    x: Tensor
    """[T, in], requires a gradient."""
    weight: Tensor
    """[out, in]."""
    dy: Tensor
    """[T, out]."""
    weights: LoraWeights
    tables: LoraTables

    def base(self) -> Callable[[], tuple[Tensor, Tensor]]:
        """Return the linear alone: output and input gradient, into tensors that are there."""
        x = self.x.detach()
        y, dx = torch.empty_like(self.dy), torch.empty_like(x)

        def run() -> tuple[Tensor, Tensor]:
            torch.mm(x, self.weight.T, out=y)
            torch.mm(self.dy, self.weight, out=dx)
            return y, dx

        return run

    def ours(self) -> Callable[[], tuple[Tensor, Tensor]]:
        """Return our linear, forward and backward; the adapters' gradients go to `weights`."""

        def run() -> tuple[Tensor, Tensor]:
            y = lora_linear(self.x, self.weight, self.tables, self.weights)
            (dx,) = torch.autograd.grad(y, self.x, self.dy)
            return y, dx

        return run

    def loop(self) -> Callable[[], tuple[Tensor, ...]]:
        """Return plain torch, adapter by adapter: output, gradients of input, A and B of each.

        Rows are split and joined once, not sliced: a slice's gradient is as large as the row.
        """
        layout = self.tables.layout
        lengths = [end - start for start, end in itertools.pairwise(self.tables.bounds)]
        pairs = [
            (a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_())
            for i, start in enumerate(self.weights.starts)
            for a, b in layout.views(self.weights.pool, start, i)
        ]
        wanted = (self.x, *itertools.chain.from_iterable(pairs))

        def run() -> tuple[Tensor, ...]:
            rows = torch.split(self.x, lengths)
            low = [_SCALE * (x @ a.T @ b) for x, (a, b) in zip(rows, pairs, strict=True)]
            y = torch.nn.functional.linear(self.x, self.weight) + torch.cat(low)
            return y, *torch.autograd.grad(y, wanted, self.dy)

        return run


def lora_shapes(sizes: Sizes) -> list[LoraShape]:
    """Return the shapes of the table."""
    return [
        LoraShape(tokens=tokens, in_width=sizes.width, out_width=out_width)
        for tokens in _TOKENS
        for out_width in (sizes.width, sizes.ffn)
    ]


def lora_case(
    setting: Setting,
    shape: LoraShape,
    *,
    tiles: LoraTiles | None = None,
    side_stream: torch.cuda.Stream | None = None,
) -> LoraCase:
    """Make the tensors of a shape.

    Args:
        setting: where and in which dtype; its own sizes are not read.
        shape: of the row and the linear.
        tiles: sizes of the kernels' tiles, or None for the device's own.
        side_stream: where the weight gradients run, see `lora_tables`.
    """
    layout, device = shape.layout, setting.device
    blocks = [layout.block_elements(i) for i in range(shape.adapters)]
    starts = tuple(itertools.accumulate(blocks[:-1], initial=0))
    pool = setting.random(sum(blocks)).mul_(_SPREAD).requires_grad_()
    wide = torch.promote_types(setting.dtype, torch.float32)
    return LoraCase(
        x=setting.random(shape.tokens, shape.in_width, grad=True),
        weight=setting.random(shape.out_width, shape.in_width).mul_(_SPREAD),
        dy=setting.random(shape.tokens, shape.out_width),
        weights=LoraWeights(
            pool,
            torch.zeros(pool.shape, dtype=wide, device=device),
            starts,
            torch.tensor(starts, dtype=torch.int64, device=device),
            torch.full((shape.adapters,), _SCALE, device=device),
        ),
        tables=lora_tables(layout, shape.bounds, device, sizes=tiles, side_stream=side_stream),
    )


def lora_row(
    setting: Setting,
    shape: LoraShape,
    meter: Meter,
    *,
    side_stream: torch.cuda.Stream | None = None,
) -> dict[str, Any]:
    """Measure a shape: the linear alone, ours and the loop in the same rounds.

    Returns:
        The row. An overhead is the time over that of the linear alone, less 1. The loop's figures
        are None where it does not fit the GPU.
    """
    case = lora_case(setting, shape, side_stream=side_stream)
    ours, loop = case.ours(), case.loop()
    extra_bytes = meter.extra_bytes(Prepared(ours, _held(case)))
    calls: list[Callable[[], Any]] = [case.base(), ours]
    if _fits(loop):
        calls.append(loop)
    base_ms, ours_ms, *loop_ms = meter.interleaved_ms(calls)
    return {
        "tokens": shape.tokens,
        "in": shape.in_width,
        "out": shape.out_width,
        "adapters": shape.adapters,
        "base_ms": base_ms,
        "ours_ms": ours_ms,
        "overhead": ours_ms / base_ms - 1.0,
        "loop_ms": loop_ms[0] if loop_ms else None,
        "loop_overhead": loop_ms[0] / base_ms - 1.0 if loop_ms else None,
        "extra_bytes": extra_bytes,
    }


def _held(case: LoraCase) -> tuple[Tensor, ...]:
    return (case.x, case.weight, case.dy, case.weights.pool, case.weights.grads)


def _fits(call: Callable[[], Any]) -> bool:
    try:
        call()
    except torch.OutOfMemoryError:
        return False
    return True
