"""Every fused operation beside its plain form, judged against fp64 under an error budget.

The fused forms are called below the public functions, so that the same cases run in Triton's
interpreter on the CPU and on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.kernels.gated import GatedFunction
from slidepack.kernels.reference import geglu_ref, rms_norm_ref, rope_ref, swiglu_ref
from slidepack.kernels.rms_norm import RMSNormFunction
from slidepack.kernels.rope import RopeFunction

Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One operation at one shape."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    """Of the inputs that have gradients."""
    fused: Callable[..., Outputs]
    plain: Callable[..., Outputs]
    frozen: tuple[int, ...] = ()
    """Inputs that want no gradient."""


def _norm(rows: int, width: int, *, plus_one: bool, residual: bool, frozen: bool) -> Case:
    def fused(x: Tensor, weight: Tensor, *rest: Tensor) -> Outputs:
        y, total = RMSNormFunction.apply(x, weight, rest[0] if rest else None, 1e-5, plus_one)
        return (y, total) if rest else (y,)

    def plain(x: Tensor, weight: Tensor, *rest: Tensor) -> Outputs:
        total = x + rest[0] if rest else x
        y = rms_norm_ref(total, weight, 1e-5, plus_one=plus_one)
        return (y, total) if rest else (y,)

    shapes: tuple[tuple[int, ...], ...] = ((rows, width), (width,))
    words = ["rms_norm", f"{rows}x{width}"]
    words += ["plus-one"] * plus_one + ["residual"] * residual + ["frozen"] * frozen
    return Case(
        "-".join(words),
        (*shapes, (rows, width)) if residual else shapes,
        fused,
        plain,
        (1,) if frozen else (),
    )


def _rope(tokens: int, heads: int, kv_heads: int, head: int, part: int) -> Case:
    def table(like: Tensor) -> tuple[Tensor, Tensor]:
        # Positions restart in the middle, as in a packed row.
        position = torch.arange(tokens, device=like.device) % max(1, tokens // 2)
        frequency = 10000.0 ** (-torch.arange(part // 2, device=like.device) * 2.0 / part)
        angle = torch.cat([position[:, None] * frequency] * 2, dim=-1)
        return angle.cos().to(like.dtype), angle.sin().to(like.dtype)

    def fused(q: Tensor, k: Tensor) -> Outputs:
        rotated: Outputs = RopeFunction.apply(q, k, *table(q))
        return rotated

    def plain(q: Tensor, k: Tensor) -> Outputs:
        cos, sin = table(q)
        return rope_ref(q, cos, sin), rope_ref(k, cos, sin)

    name = f"rope-{tokens}x{heads}-{kv_heads}x{head}-{part}"
    return Case(name, ((tokens, heads, head), (tokens, kv_heads, head)), fused, plain)


def _gated(tokens: int, width: int, *, gelu: bool) -> Case:
    activation = "gelu_tanh" if gelu else "silu"

    def fused(both: Tensor) -> Outputs:
        gate, up = torch.split(both, width, dim=1)
        return (GatedFunction.apply(gate, up, activation),)

    def plain(both: Tensor) -> Outputs:
        gate, up = torch.split(both, width, dim=1)
        return (geglu_ref(gate, up) if gelu else swiglu_ref(gate, up),)

    return Case(f"{activation}-{tokens}x{width}", ((tokens, 2 * width),), fused, plain)


def cases(*, large: bool) -> list[Case]:
    """Return the cases; `large` at the sizes of an 8B model, else small and odd ones."""
    rows = ((8192, 4096), (511, 5000)) if large else ((3, 33), (1, 8), (7, 100))
    found = []
    for tokens, width in rows:
        found += [
            _norm(tokens, width, plus_one=False, residual=False, frozen=False),
            _norm(tokens, width, plus_one=True, residual=True, frozen=False),
            _norm(tokens, width, plus_one=False, residual=True, frozen=True),
            _gated(tokens, 3 * width + 1, gelu=False),
            _gated(tokens, 3 * width + 1, gelu=True),
        ]
    if large:
        return [*found, _rope(8192, 32, 8, 128, 128), _rope(1000, 9, 3, 64, 64)]
    return [*found, _rope(5, 3, 1, 12, 12), _rope(6, 4, 2, 16, 6), _rope(1, 1, 1, 2, 2)]


def judge(case: Case, dtype: torch.dtype, device: str) -> None:
    """Run a case and hold its outputs and gradients to the error budget.

    |truth - ours| <= |truth - plain form in the same dtype| + a few roundings of the largest value.
    """
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator).to(dtype) for shape in case.shapes]
    truth = _run(case, case.plain, inputs, torch.float64, device)
    plain = _run(case, case.plain, inputs, dtype, device)
    ours = _run(case, case.fused, inputs, dtype, device)
    # A result is rounded once at its end; the plain form may round the same way by luck.
    rounding = 2.0 * torch.finfo(dtype).eps
    for index, (t, p, o) in enumerate(zip(truth, plain, ours, strict=True)):
        assert torch.isfinite(o).all(), (case.name, index)
        budget = float((t - p).abs().max()) + rounding * float(t.abs().max())
        error = float((t - o).abs().max())
        assert error <= budget, (case.name, index, error, budget)


def _run(
    case: Case,
    function: Callable[..., Outputs],
    inputs: list[Tensor],
    dtype: torch.dtype,
    device: str,
) -> list[Tensor]:
    leaves = [
        x.to(device, dtype, copy=True).requires_grad_(index not in case.frozen)
        for index, x in enumerate(inputs)
    ]
    outputs = function(*leaves)
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for output in outputs:
        cotangent = torch.randn(output.shape, generator=generator).to(dtype).to(device)
        total = total + (output.double() * cotangent.double()).sum()
    total.backward()
    grads = [leaf.grad for leaf in leaves if leaf.requires_grad]
    assert all(grad is not None for grad in grads)
    results = [*(output.detach() for output in outputs), *(g for g in grads if g is not None)]
    return [result.double() for result in results]
