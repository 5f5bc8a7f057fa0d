import math
from typing import Any

import pytest
import torch
from transformers import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup
from transformers.optimization import get_linear_schedule_with_warmup

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.optimizer import (
    adamw_numbers,
    adamw_scalars_of,
    learning_rate,
    optimizer_step,
    squared_norms,
    warmup_steps,
)
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.shape import ModelShape, RopeShape

CPU = torch.device("cpu")
SHAPE = ModelShape(
    architecture="LlamaForCausalLM",
    num_layers=2,
    hidden=12,
    ffn=20,
    num_heads=2,
    num_kv_heads=1,
    head_dim=6,
    vocab=31,
    max_positions=64,
    rms_eps=1e-5,
    rope=RopeShape(kind="default", theta=10000.0),
    tied_head=True,
)
SCHEDULES: dict[str, Any] = {
    "cosine": get_cosine_schedule_with_warmup,
    "linear": get_linear_schedule_with_warmup,
}


def _arena(dtype: torch.dtype) -> LoraArena:
    arena = LoraArena(SHAPE, LoraMethod(rank=3), LanePool(CPU, dtype))
    arena.initialise(1)
    return arena


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
@pytest.mark.parametrize(("total", "warmup"), [(10, 0.0), (10, 0.3), (7, 0.05), (1, 1.0)])
def test_learning_rate_equals_transformers(schedule: str, total: int, warmup: float) -> None:
    spec = OptimSpec(lr=0.25, schedule=schedule, warmup_fraction=warmup)  # type: ignore[arg-type]  # parametrised
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=spec.lr)
    steps = warmup_steps(spec, total)
    if schedule == "constant":
        judge = get_constant_schedule_with_warmup(optimizer, steps)
    else:
        judge = SCHEDULES[schedule](optimizer, steps, total)
    for step in range(total):
        assert learning_rate(spec, step, total) == pytest.approx(
            judge.get_last_lr()[0], rel=1e-12, abs=1e-15
        )
        optimizer.step()
        judge.step()


@pytest.mark.parametrize("clip", [0.0, 0.5, 100.0], ids=["no-clip", "always", "never"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, 1e-13),
        (torch.float32, 2e-6),
        # The master is fp32 all the same.
        (torch.bfloat16, 2e-6),
    ],
    ids=["fp64", "fp32", "bf16"],
)
def test_step_equals_torch_adamw_and_clip(
    clip: float, dtype: torch.dtype, tolerance: float
) -> None:
    spec = OptimSpec(
        lr=1e-2, schedule="constant", warmup_fraction=0, clip_norm=clip, weight_decay=0.1
    )
    arena = _arena(dtype)
    judge = torch.nn.Parameter(arena.master().clone())
    optimizer = torch.optim.AdamW([judge], lr=spec.lr, weight_decay=spec.weight_decay)
    generator = torch.Generator().manual_seed(2)
    for step in range(10):
        grad = torch.randn(arena.grads.shape, generator=generator, dtype=arena.grads.dtype)
        arena.grads.copy_(grad)
        norm = math.sqrt(float(squared_norms(arena.grads[None])))
        optimizer_step(arena.state, arena.grads, spec, step, 10, norm)
        judge.grad = grad
        expected = torch.nn.utils.clip_grad_norm_([judge], clip or math.inf)
        assert norm == pytest.approx(float(expected), rel=1e-6)
        optimizer.step()
        torch.testing.assert_close(arena.master(), judge.data, rtol=tolerance, atol=tolerance)


def test_squared_norms_are_of_each_row_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((5, 2048), generator=generator)
    rows[2, 7] = math.nan
    rows[3, 7] = math.inf
    norms = squared_norms(rows)
    for row, norm in zip(rows, norms, strict=True):
        assert torch.equal(squared_norms(row.clone()[None])[0].nan_to_num(), norm.nan_to_num())
    assert norms.isnan().tolist() == [False, False, True, False, False]
    assert norms.isinf().tolist() == [False, False, False, True, False]
    whole = [0, 1, 4]
    torch.testing.assert_close(
        norms[whole], rows[whole].double().square().sum(dim=1), rtol=1e-6, atol=0
    )


def test_moments_that_were_carried_over_are_corrected_by_their_own_age() -> None:
    """As those of a run that has made all these steps itself; the schedule stays the new job's."""
    spec = OptimSpec(lr=1e-3, schedule="constant", warmup_fraction=0.0)
    carried = adamw_numbers(spec, 3, 10, 1.0, carried_steps=5)
    assert carried == adamw_numbers(spec, 8, 20, 1.0)
    assert carried != adamw_numbers(spec, 3, 10, 1.0)
    assert torch.equal(adamw_scalars_of(spec, 3, 10, 1.0, 5), adamw_scalars_of(spec, 8, 20, 1.0))
    falling = OptimSpec(lr=1e-3, schedule="linear", warmup_fraction=0.0)
    first = adamw_numbers(falling, 0, 10, 1.0, carried_steps=5)[1]
    assert first == pytest.approx(1e-3 / (1.0 - falling.beta1**6))
