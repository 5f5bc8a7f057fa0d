"""The machine as the planner of `slidepack fit` sees it, within the limit of the measurement."""

import os

import psutil
import torch

from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_slide.run import free_ram
from slidepack.engine.memory_parts import Machine
from slidepack.engine.rates import Rates, rates_of

__all__ = ["machine_of", "measured_rates"]


def machine_of(options: PackedOptions, device: torch.device) -> Machine:
    """Return what is free now; to be asked before anything is allocated.

    Without a card, the limit stands for one, so that a base may slide there too.
    """
    ram_bytes = free_ram()
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else ram_bytes
    if options.vram_cap_gb is not None:
        free = min(free, int(options.vram_cap_gb * 1e9))
    return Machine(
        device=str(device),
        device_free_bytes=free,
        ram_available_bytes=ram_bytes,
        cpu_threads=_cpu_threads(),
    )


def measured_rates(machine: Machine, device: torch.device) -> Rates:
    """Return how fast `slidepack fit` takes this machine to be.

    The link of a card that its table does not have is a guess here; `fit` asks the driver.
    """
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return rates_of(card, cpu_threads=machine.cpu_threads)


def _cpu_threads() -> int:
    """Return the cores that a run's plan gets."""
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
