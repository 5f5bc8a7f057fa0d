"""One lane's optimizer step: exact global-norm clipping, then AdamW over its flat arena."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from slidepack.engine.contract.job import OptimSpec
from slidepack.kernels import AdamWState, adamw, adamw_ref, block_squares, upload

__all__ = [
    "adamw_numbers",
    "adamw_scalars_of",
    "clip_factor",
    "lane_norms",
    "learning_rate",
    "optimizer_step",
    "squared_norms",
    "warmup_steps",
]


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
def squared_norms(grads_LN: Tensor) -> Tensor:
    """Return the squared norm of each row, [L] fp64, whatever is beside the rows in memory."""
    if grads_LN.dtype == torch.float64:
        return torch.stack([row.square().sum() for row in grads_LN])
    return torch.stack([block_squares(row).double().sum() for row in grads_LN])


def lane_norms(squares_NL: Tensor) -> list[float]:
    """Return each lane's norm from the squared norms of its layers.

    They are added without rounding, so that the order in which layers pass does not matter.
    """
    return [_root(lane) for lane in squares_NL.tolist()]


def _root(squares: Sequence[float]) -> float:
    # `fsum` refuses infinities of both signs, which squares never are, and passes NaNs on.
    return math.sqrt(math.fsum(squares))


@torch.no_grad()
def optimizer_step(
    state: AdamWState,
    grads: Tensor,
    spec: OptimSpec,
    step: int,
    total_steps: int,
    norm: float,
    carried_steps: int = 0,
) -> None:
    """Clip and step.

    Args:
        state: a lane's master and moments, or a part of them.
        grads: of the same elements; the gradient of the step's mean loss.
        spec: AdamW's settings.
        step: steps done before this one, from 0.
        total_steps: steps of the whole run, for the schedule.
        norm: of the lane's whole gradient, a finite number.
        carried_steps: that the moments had seen before the run's first step.
    """
    if state.remainder is None:
        adamw_ref(
            state.master,
            grads * clip_factor(spec, norm),
            state.exp_avg,
            state.exp_avg_sq,
            step=carried_steps + step + 1,
            lr=learning_rate(spec, step, total_steps),
            beta1=spec.beta1,
            beta2=spec.beta2,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
        )
        return
    adamw(
        grads,
        state,
        upload(adamw_scalars_of(spec, step, total_steps, norm, carried_steps), grads.device),
        beta1=spec.beta1,
        beta2=spec.beta2,
        eps=spec.eps,
    )


def clip_factor(spec: OptimSpec, norm: float) -> float:
    """Return the factor on a gradient of this norm."""
    # torch.nn.utils.clip_grad_norm_ adds 1e-6 too; parity with it is a test.
    return min(1.0, spec.clip_norm / (norm + 1e-6)) if spec.clip_norm > 0.0 else 1.0


def adamw_numbers(
    spec: OptimSpec, step: int, total_steps: int, norm: float, carried_steps: int = 0
) -> list[float]:
    """Return the numbers of a lane's step: `kernels.adamw_scalars`, then those of the moments."""
    lr = learning_rate(spec, step, total_steps)
    # The moments' bias goes by their own age: corrected anew, old moments would be blown up.
    age = carried_steps + step + 1
    return [
        clip_factor(spec, norm),
        lr / (1.0 - spec.beta1**age),
        math.sqrt(1.0 - spec.beta2**age),
        1.0 - lr * spec.weight_decay,
        1.0 - spec.beta1,
        spec.beta2,
        1.0 - spec.beta2,
        spec.eps,
    ]


def adamw_scalars_of(
    spec: OptimSpec, step: int, total_steps: int, norm: float, carried_steps: int = 0
) -> Tensor:
    """Return `kernels.adamw_scalars` of a lane's step, on the CPU."""
    numbers = adamw_numbers(spec, step, total_steps, norm, carried_steps)
    return torch.tensor(numbers[:4], dtype=torch.float32)
