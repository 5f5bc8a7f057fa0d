"""How much memory and disk a run needs, and the plan that follows. Torch-free."""

from typing import Literal

from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.memory_full import plan_full
from slidepack.engine.memory_lora import lora_precision, plan_lora
from slidepack.engine.memory_parts import (
    GIB,
    Machine,
    MemoryNeed,
    activation_bytes_per_token,
    usable_bytes,
)
from slidepack.engine.memory_tighten import tighten
from slidepack.engine.shape import ModelShape

__all__ = [
    "GIB",
    "Machine",
    "MemoryNeed",
    "activation_bytes_per_token",
    "plan_in_detail",
    "plan_run",
    "run_precision",
    "tighten",
    "usable_bytes",
]


def run_precision(spec: JobSpec, device: str) -> Literal["fp32", "bf16"]:
    """Return the precision that the passes of a run read weights in."""
    if isinstance(spec.method, LoraMethod):
        return lora_precision(spec.method, device)
    return "fp32" if device == "cpu" else "bf16"


def plan_run(spec: JobSpec, shape: ModelShape, machine: Machine) -> RunPlan:
    """Decide how a run uses the machine, or say why it cannot.

    Raises:
        SlidepackError: RAM-TOO-SMALL or GPU-OUT-OF-MEMORY.
    """
    return plan_in_detail(spec, shape, machine)[0]


def plan_in_detail(
    spec: JobSpec, shape: ModelShape, machine: Machine
) -> tuple[RunPlan, MemoryNeed]:
    """Return the plan as `plan_run` does, and what its bytes are for.

    Raises:
        SlidepackError: as `plan_run` does.
    """
    if isinstance(spec.method, LoraMethod):
        return plan_lora(spec, shape, machine)
    return plan_full(spec, shape, machine)
