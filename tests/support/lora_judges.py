"""What the grouped LoRA linear is held to: autograd, equality, and an error budget."""

from typing import Any

import torch
from torch import Tensor

from slidepack.kernels.lora.dropout import keep_mask
from slidepack.kernels.lora.expand import expand_launch, expand_plain
from slidepack.kernels.lora.outer import outer_launch, outer_plain
from slidepack.kernels.lora.shrink import shrink_launch, shrink_plain
from slidepack.kernels.reference import lora_ref
from support.lora_cases import LoraCase, LoraRow, Results, draw


def expected(row: LoraRow) -> Results:
    """Return what autograd makes of the plain formula, adapter by adapter."""
    case, results = row.case, []
    for index, lane in enumerate(case.lanes):
        rows = row.tables.rows(index)
        x = row.x[rows].clone().requires_grad_()
        dropped = x
        if row.dropout is not None:
            kept = keep_mask(row.dropout, index, rows, case.site, case.in_width)
            dropped = x * kept * float(row.dropout.keep_scales[index])
        pairs = [
            (a.detach().clone().requires_grad_(), b.detach().T.clone().requires_grad_())
            for a, b in row.tables.layout.views(row.weights.pool, row.weights.starts[index], index)
        ]
        parts = [lora_ref(dropped, a, b, lane.scale) for a, b in pairs]
        y = torch.nn.functional.linear(x, row.weight) + torch.cat(parts, dim=1)
        y.backward(row.dy[rows])
        found = {"y": y.detach(), "dx": _grad(x)}
        for part, (a, b) in enumerate(pairs):
            found |= {f"a{part}": _grad(a), f"b{part}": _grad(b).T}
        results.append(found)
    return results


def _grad(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def assert_equal(ours: Results, theirs: Results) -> None:
    """Compare lane by lane, bit for bit."""
    for lane, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for name, tensor in mine.items():
            assert torch.equal(tensor, other[name]), (lane, name)


def assert_close(ours: Results, theirs: Results, tolerance: float) -> None:
    """Compare lane by lane, relative to the largest value."""
    for lane, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for name, tensor in mine.items():
            assert tensor.shape == other[name].shape, (lane, name)
            error = _largest(tensor - other[name])
            assert error <= tolerance * max(1.0, _largest(other[name])), (lane, name, error)


def judge_lora(case: LoraCase, dtype: torch.dtype, device: torch.device) -> None:
    """Hold the fused form to the error budget, lane by lane.

    |truth - ours| <= |truth - plain form in the same dtype| + roundings of the largest value.
    """
    drawing = draw(case)
    truth = drawing.row(torch.float64, device, rounded=dtype).run(fused=False)
    plain = drawing.row(dtype, device).run(fused=False)
    row = drawing.row(dtype, device)
    ours = row.run(fused=True)
    assert row.padding().isnan().all()
    for index, lane in enumerate(case.lanes):
        # As the plain form may round by luck; in fp32 a sum of n terms does, about sqrt(n) times.
        terms = max(case.in_width, case.layout.out_width, lane.length)
        roundings = 2.0 + (terms**0.5 if dtype == torch.float32 else 0.0)
        for name, t in truth[index].items():
            o, p = ours[index][name].double(), plain[index][name].double()
            assert torch.isfinite(o).all(), (case.name, index, name)
            budget = _largest(t - p) + roundings * torch.finfo(dtype).eps * _largest(t)
            assert _largest(t - o) <= budget, (case.name, index, name, _largest(t - o), budget)


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def drop_ones(row: LoraRow, *, fused: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return what each operation keeps of ones: all of it, its sums by token and by feature.

    The adapters have one part of rank 1; their weights become ones here. Every sum is exact.
    """
    weights, tables, side = row.weights, row.tables, row.tables.input_side
    weights.pool.data.fill_(1.0)
    ones = torch.ones_like(row.x)
    s = torch.ones((len(ones), tables.layout.s_columns), dtype=ones.dtype, device=ones.device)
    mask = torch.empty_like(ones)
    dropout: dict[str, Any] = {"dropout": row.dropout, "site": row.case.site}
    expand = expand_launch if fused else expand_plain
    shrink = shrink_launch if fused else shrink_plain
    outer = outer_launch if fused else outer_plain
    expand(s, weights, tables, side, mask, add=False, **dropout)
    by_token = shrink(ones, weights, tables, side, **dropout)[:, 0]
    outer(s, ones, weights, tables, side, add=False, **dropout)
    views = [tables.layout.views(weights.grads, start, i) for i, start in enumerate(weights.starts)]
    return mask, by_token, torch.cat([pairs[0][0] for pairs in views])


def kept_of(row: LoraRow) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `drop_ones` must return, of the plain masks."""
    dropout, lanes = row.dropout, range(len(row.case.lanes))
    assert dropout is not None
    masks = [
        keep_mask(dropout, lane, row.tables.rows(lane), row.case.site, row.case.in_width)
        for lane in lanes
    ]
    kept = [mask.to(row.x.dtype) for mask in masks]
    mask = torch.cat(kept)
    return mask, mask.sum(dim=1), torch.stack([lane.sum(dim=0) for lane in kept])
