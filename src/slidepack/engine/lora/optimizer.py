"""One lane's optimizer step: exact global-norm clipping, then AdamW over its flat arena."""

import math

import torch
from torch import Tensor

from slidepack.engine.contract.job import OptimSpec
from slidepack.engine.lora.arena import LoraArena
from slidepack.kernels import adamw, adamw_ref, adamw_scalars

__all__ = ["gradient_norm", "learning_rate", "optimizer_step", "warmup_steps"]


def learning_rate(spec: OptimSpec, step: int, total_steps: int) -> float:
    """Return the learning rate of a step.

    Warm-up is linear from 0; then it is constant, or falls to 0 at `total_steps` as a line or half
    a cosine. The formulas are those of transformers' `get_*_schedule_with_warmup`.

    Args:
        spec: peak rate, schedule and warm-up.
        step: steps done before this one, from 0.
        total_steps: steps of the whole run.
    """
    warmup = warmup_steps(spec, total_steps)
    if step < warmup:
        return spec.lr * step / warmup
    if spec.schedule == "constant":
        return spec.lr
    share = (step - warmup) / max(1, total_steps - warmup)
    if spec.schedule == "linear":
        return spec.lr * max(0.0, 1.0 - share)
    return spec.lr * max(0.0, 0.5 * (1.0 + math.cos(math.pi * share)))


def warmup_steps(spec: OptimSpec, total_steps: int) -> int:
    """Return the number of warm-up steps, rounded up."""
    return math.ceil(spec.warmup_fraction * total_steps)


@torch.no_grad()
def gradient_norm(arena: LoraArena) -> Tensor:
    """Return the norm of a lane's gradient, a scalar on its device."""
    norm: Tensor = torch.linalg.vector_norm(arena.grads)
    return norm


@torch.no_grad()
def optimizer_step(
    arena: LoraArena, spec: OptimSpec, step: int, total_steps: int, norm: float
) -> None:
    """Clip and step.

    Args:
        arena: the lane; its gradient is that of the step's mean loss.
        spec: AdamW's settings.
        step: steps done before this one, from 0.
        total_steps: steps of the whole run, for the schedule.
        norm: of the gradient. Where it is not finite, nothing is changed.
    """
    if not math.isfinite(norm):
        return
    # torch.nn.utils.clip_grad_norm_ adds 1e-6 too; parity with it is a test.
    clip = min(1.0, spec.clip_norm / (norm + 1e-6)) if spec.clip_norm > 0.0 else 1.0
    lr = learning_rate(spec, step, total_steps)
    state = arena.state
    if state.remainder is None:
        adamw_ref(
            state.master,
            arena.grads * clip,
            state.exp_avg,
            state.exp_avg_sq,
            step=step + 1,
            lr=lr,
            beta1=spec.beta1,
            beta2=spec.beta2,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
        )
        return
    scalars = adamw_scalars(
        torch.tensor(step + 1),
        torch.tensor(clip),
        lr=lr,
        beta1=spec.beta1,
        beta2=spec.beta2,
        weight_decay=spec.weight_decay,
    )
    adamw(
        arena.grads,
        state,
        scalars.to(arena.pool.device),
        beta1=spec.beta1,
        beta2=spec.beta2,
        eps=spec.eps,
    )
