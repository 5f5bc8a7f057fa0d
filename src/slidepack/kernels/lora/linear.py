"""A frozen linear with the adapters of many LoRA lanes (Hu et al., arXiv 2106.09685), in one pass.

Each token meets its own adapter only. The low-rank products are written first and the base product
is accumulated onto them, so the output is read and written once more than without adapters.
"""

import contextlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slidepack.kernels.lora.dropout import LoraDropout
from slidepack.kernels.lora.expand import expand_launch, expand_plain
from slidepack.kernels.lora.layout import LoraWeights
from slidepack.kernels.lora.outer import outer_launch, outer_plain
from slidepack.kernels.lora.shrink import shrink_launch, shrink_plain
from slidepack.kernels.lora.tables import LoraTables, Side

__all__ = ["LoraCall", "LoraLinearFunction", "lora_linear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraCall:
    """What one call needs beside tensors with gradients."""

    tables: LoraTables
    weights: LoraWeights
    add: bool
    """Add to the gradients that are there, as every micro-batch but the first of a step does."""
    dropout: LoraDropout | None
    site: int
    fused: bool
    """Triton instead of plain PyTorch."""
    again: Callable[[], Tensor] | None = None
    """Returns the base's weight for the backward pass; None where it is kept for that."""

    def shrink(self, x: Tensor, side: Side, scales: Tensor | None, *, masked: bool) -> Tensor:
        """Return the rank side of a wide tensor."""
        dropout = self.dropout if masked else None
        run = shrink_launch if self.fused else shrink_plain
        return run(
            x, self.weights, self.tables, side, scales=scales, dropout=dropout, site=self.site
        )

    def expand(
        self, s: Tensor, side: Side, width: int, scales: Tensor | None, *, masked: bool
    ) -> Tensor:
        """Return the wide side of a rank tensor."""
        dropout = self.dropout if masked else None
        y = torch.empty((s.shape[0], width), dtype=s.dtype, device=s.device)
        run = expand_launch if self.fused else expand_plain
        run(
            s,
            self.weights,
            self.tables,
            side,
            y,
            add=False,
            scales=scales,
            dropout=dropout,
            site=self.site,
        )
        return y

    def outer(
        self, s: Tensor, x: Tensor, side: Side, scales: Tensor | None, *, masked: bool
    ) -> None:
        """Write weight gradients."""
        run = outer_launch if self.fused else outer_plain
        run(
            s,
            x,
            self.weights,
            self.tables,
            side,
            add=self.add,
            scales=scales,
            dropout=self.dropout if masked else None,
            site=self.site,
        )

    @property
    def keep_scales(self) -> Tensor | None:
        """1 / (1 - p) of each adapter, or None without dropout."""
        return None if self.dropout is None else self.dropout.keep_scales


class LoraLinearFunction(torch.autograd.Function):
    """Autograd of the grouped products around one base product each way.

    The pool's gradient does not pass through autograd: it would be the size of the whole pool for
    each linear. It is written to `weights.grads`, and the pool is an input only so that a pass is
    recorded where the linear's own input wants no gradient.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, pool: Tensor, call: LoraCall) -> Tensor:
        """Return x Wᵀ + scale · drop(x) Aᵀ Bᵀ, [T, out]."""
        tables = call.tables
        s = call.shrink(x, tables.input_side, call.keep_scales, masked=True)
        y = call.expand(s, tables.output_side, weight.shape[0], call.weights.scales, masked=False)
        y.addmm_(x, weight.T)
        if call.again is None:
            ctx.save_for_backward(x, s, weight)
        else:
            ctx.save_for_backward(x, s)
        ctx.call = call
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        """Write the adapters' gradients; return that of x where it is wanted."""
        x, s, *kept = ctx.saved_tensors
        call: LoraCall = ctx.call
        tables, scales = call.tables, call.weights.scales
        dy = dy.contiguous()
        with _beside(tables.side_stream):
            call.outer(s, dy, tables.output_side, scales, masked=False)
        ds = call.shrink(dy, tables.output_side, scales, masked=False)
        with _beside(tables.side_stream):
            call.outer(ds, x, tables.input_side, call.keep_scales, masked=True)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = call.expand(ds, tables.input_side, x.shape[1], call.keep_scales, masked=True)
            dx.addmm_(dy, kept[0] if call.again is None else call.again())
        if tables.side_stream is not None:
            # What the side stream reads may be freed once this returns, so it is waited for here.
            torch.cuda.current_stream(x.device).wait_stream(tables.side_stream)
        return dx, None, None, None


@contextlib.contextmanager
def _beside(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Launch on a stream, after everything that was launched so far."""
    if stream is None:
        yield
        return
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        yield


def lora_linear(
    x: Tensor,
    weight: Tensor,
    tables: LoraTables,
    weights: LoraWeights,
    *,
    add: bool = False,
    dropout: LoraDropout | None = None,
    site: int = 0,
    again: Callable[[], Tensor] | None = None,
) -> Tensor:
    """Apply a frozen linear and each token's own adapter.

    Equivalent, for each adapter i with tokens bounds[i] to bounds[i + 1], to

        y[rows] = x[rows] @ weight.T
        for each part: y[rows, part] += scale * (drop(x[rows]) @ a.T @ b_transposed)

    The backward pass writes the adapters' gradients to `weights.grads`, and returns that of `x`.
    The base is frozen. Results do not depend on which other adapters are in the row.

    Args:
        x: [T, in], tokens in the order of the adapters.
        weight: [out, in], same dtype; parts of the linear are neighbours in it.
        tables: of this row and this linear, on the device of `x`.
        weights: the adapters; `weights.pool` has the dtype of `x` and requires a gradient where
            the adapters are trained.
        add: add to the gradients instead of overwriting them.
        dropout: of this row, or None. One mask serves all parts of the linear.
        site: number of the linear, a key of the dropout.
        again: returns `weight` once more in the backward pass, where its memory is used for
            something else until then; None keeps it.

    Returns:
        [T, out].

    Raises:
        ValueError: shapes, dtypes or devices do not fit.
    """
    _check(x, weight, tables, weights, dropout)
    call = LoraCall(
        tables=tables,
        weights=weights,
        add=add,
        dropout=dropout,
        site=site,
        fused=x.is_cuda,
        again=again,
    )
    y: Tensor = LoraLinearFunction.apply(x.contiguous(), weight, weights.pool, call)
    return y


def _check(
    x: Tensor,
    weight: Tensor,
    tables: LoraTables,
    weights: LoraWeights,
    dropout: LoraDropout | None,
) -> None:
    layout = tables.layout
    expected = (layout.out_width, layout.in_width)
    if x.shape != (tables.tokens, layout.in_width) or weight.shape != expected:
        raise ValueError(
            f"x is {tuple(x.shape)}, weight is {tuple(weight.shape)}; the tables are of "
            f"{(tables.tokens, layout.in_width)} and {expected}"
        )
    if not x.dtype == weight.dtype == weights.pool.dtype:
        raise ValueError(
            f"x is {x.dtype}, weight is {weight.dtype}, the pool is {weights.pool.dtype}"
        )
    count = len(layout.ranks)
    if len(weights.starts) != count:
        raise ValueError(f"{len(weights.starts)} blocks for {count} adapters")
    ends = list(map(operator.add, weights.starts, tables.block_sizes))
    if max(ends, default=0) > weights.pool.numel():
        adapter = ends.index(max(ends))
        raise ValueError(
            f"the block of adapter {adapter} starts at {weights.starts[adapter]} and is "
            f"{tables.block_sizes[adapter]} long, the pool ends at {weights.pool.numel()}"
        )
    if dropout is not None and (
        dropout.seeds.shape != (count,) or dropout.samples.shape != (tables.tokens,)
    ):
        raise ValueError(
            f"dropout is of {tuple(dropout.seeds.shape)} adapters and "
            f"{tuple(dropout.samples.shape)} tokens, not {count} and {tables.tokens}"
        )
    places = {t.device for t in (x, weight, weights.pool, weights.grads, weights.offsets)}
    places.add(tables.input_side.shrink.device.device)
    if len(places) > 1:
        raise ValueError(f"tensors are on {', '.join(sorted(map(str, places)))}")
