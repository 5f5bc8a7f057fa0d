"""Smaller plans of full fine-tuning, after the card ran out of memory. Torch-free."""

from collections.abc import Iterator
from typing import Final

import msgspec

from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.plan import FullPlan, RunPlan
from slidepack.engine.memory_full import FEWEST_SLOTS, SLOTS
from slidepack.engine.memory_full_need import full_need
from slidepack.engine.memory_nvme import with_traffic
from slidepack.engine.memory_parts import GIB
from slidepack.engine.shape import ModelShape

__all__ = ["tighten"]

_TIGHTER: Final = 0.9
"""What a smaller plan takes, at most, of one that did not fit: a second try should succeed."""


def tighten(plan: RunPlan, spec: JobSpec, shape: ModelShape) -> RunPlan | None:
    """Return a smaller plan after the card ran out of memory; None where nothing is left.

    Layers that stayed slide; then micro-batches are halved, down to the longest row; then the
    window gets smaller. One call goes on until the plan takes a tenth less.

    Args:
        plan: what ran out of memory.
        spec: the job's.
        shape: the model's.
    """
    if plan.full is None or plan.device == "cpu":
        return None
    smallest: RunPlan | None = None
    for full, micro, what in _smaller(plan, plan.full):
        need = full_need(shape, full, micro, clip=spec.optim.clip_norm > 0.0, on_cpu=False)
        if need.device_bytes >= (smallest or plan).predicted_device_bytes:
            continue
        smallest = msgspec.structs.replace(
            plan,
            full=with_traffic(shape, full, micro, on_cpu=False),
            micro_batch_tokens=micro,
            # What is on drives stays there.
            layer_weights=tuple(
                "nvme" if home == "nvme" else "host" for home in plan.layer_weights
            ),
            predicted_device_bytes=need.device_bytes,
            predicted_host_bytes=need.host_bytes,
            reason=f"The card ran out of memory, so {what} now "
            f"({need.device_bytes / GIB:.1f} GiB instead of "
            f"{plan.predicted_device_bytes / GIB:.1f}). Before: {plan.reason}",
        )
        if need.device_bytes <= _TIGHTER * plan.predicted_device_bytes:
            break
    return smallest


def _smaller(plan: RunPlan, full: FullPlan) -> Iterator[tuple[FullPlan, int, str]]:
    """Yield ever smaller plans, and what is different."""
    micro, said = plan.micro_batch_tokens, []
    if full.weights == "resident":
        slots = min(full.weight_slots, SLOTS[0][0])
        full = msgspec.structs.replace(full, weights="slide", weight_slots=max(2, slots))
        said.append("layers slide")
        yield full, micro, said[0]
    while micro > full.longest_row:
        micro = max(full.longest_row, micro // 2)
        yield full, micro, ", ".join([*said, f"micro-batches have at most {micro} tokens"])
    if micro < plan.micro_batch_tokens:
        said.append(f"micro-batches have at most {micro} tokens")
    for weights, grads in (*SLOTS, *FEWEST_SLOTS):
        if weights <= full.weight_slots and grads <= full.grad_slots:
            smaller = msgspec.structs.replace(full, weight_slots=weights, grad_slots=grads)
            window = f"the window has {weights} layers and {grads} gradients"
            yield smaller, micro, ", ".join([*said, window])
