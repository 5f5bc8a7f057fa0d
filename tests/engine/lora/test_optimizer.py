import math
from typing import Any

import pytest
import torch
from transformers import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup
from transformers.optimization import get_linear_schedule_with_warmup

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.optimizer import learning_rate, optimizer_step, warmup_steps
from slidepack.engine.shape import ModelShape, RopeShape

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
    arena = LoraArena(SHAPE, LoraMethod(rank=3), torch.device("cpu"), dtype)
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
    ("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)], ids=["fp64", "fp32"]
)
def test_step_equals_torch_adamw_and_clip(
    clip: float, dtype: torch.dtype, tolerance: float
) -> None:
    spec = OptimSpec(lr=1e-2, schedule="constant", warmup_fraction=0, clip_norm=clip)
    arena = _arena(dtype)
    judge = torch.nn.Parameter(arena.params.clone())
    optimizer = torch.optim.AdamW([judge], lr=spec.lr, weight_decay=spec.weight_decay)
    generator = torch.Generator().manual_seed(2)
    for step in range(10):
        grad = torch.randn(arena.grads.shape, generator=generator, dtype=dtype)
        arena.grads.copy_(grad)
        norm = optimizer_step(arena, spec, step, 10)
        judge.grad = grad
        if clip:
            expected = torch.nn.utils.clip_grad_norm_([judge], clip)
            assert norm == pytest.approx(float(expected), rel=1e-6)
        optimizer.step()
        torch.testing.assert_close(arena.params, judge.data, rtol=tolerance, atol=tolerance)
    assert not arena.grads.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_gradient_changes_nothing(bad: float) -> None:
    arena = _arena(torch.float32)
    before = arena.params.clone()
    arena.grads[7] = bad
    norm = optimizer_step(arena, OptimSpec(), 3, 10)
    assert not math.isfinite(norm)
    assert torch.equal(arena.params, before)
    assert not arena.exp_avg.any()
    assert not arena.grads.any()


def test_gradients_of_views_land_in_the_arena() -> None:
    arena = _arena(torch.float64)
    pair = arena.pair(1, "v_proj")
    assert pair is not None
    (pair.a.sum() * 2.0 + pair.b.sum() * 3.0).backward()
    (pair.a.sum()).backward()
    assert float(arena.grads.sum()) == 3.0 * pair.a.numel() + 3.0 * pair.b.numel()
    assert int((arena.grads != 0).sum()) == pair.a.numel() + pair.b.numel()


def test_initial_values_depend_on_seed_layer_and_name_only() -> None:
    arena, again, other = _arena(torch.float32), _arena(torch.float32), _arena(torch.float32)
    other.initialise(2)
    assert torch.equal(arena.params, again.params)
    assert not torch.equal(arena.params, other.params)
    few = LoraArena(SHAPE, LoraMethod(rank=3, targets=("o_proj",)), torch.device("cpu"))
    few.initialise(1)
    mine, its = arena.pair(1, "o_proj"), few.pair(1, "o_proj")
    assert mine is not None
    assert its is not None
    assert torch.equal(mine.a, its.a)
    # PEFT's bound: Kaiming uniform with a = sqrt 5 is 1 / sqrt(fan in).
    assert float(mine.a.detach().abs().max()) <= 1 / math.sqrt(12)
    assert not mine.b.any()
