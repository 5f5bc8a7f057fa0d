"""The memory of a measurement's process: its limit, its peaks, and where it does not suffice."""

import gc

import torch

from slidepack.engine.bench_kernels.measure import current_gpu
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["clear", "lift_limit", "measured_device", "measured_dtype", "out_of_memory"]


def measured_device(options: PackedOptions) -> torch.device:
    """Return where it is measured, and make the allocator keep to the limit.

    Raises:
        RuntimeError: there is no GPU.
    """
    if options.device == "cpu":
        return torch.device("cpu")
    device = current_gpu()
    if options.vram_cap_gb is not None:
        total = torch.cuda.get_device_properties(device).total_memory
        share = min(1.0, options.vram_cap_gb * 1e9 / total)
        torch.cuda.set_per_process_memory_fraction(share, device)
    return device


def lift_limit(device: torch.device) -> None:
    """Let the allocator have the whole card again."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def measured_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of the base, as a job's plan has it."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def clear(device: torch.device) -> None:
    """Give back the device memory that nothing holds any more."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def out_of_memory(what: str, error: torch.OutOfMemoryError) -> SlidepackError:
    """Return the error of a measurement that does not fit.

    Args:
        what: of it does not.
        error: which says how much was missing.
    """
    said = str(error).partition("\n")[0]
    return SlidepackError(
        "GPU-OUT-OF-MEMORY",
        "The measurement does not fit the card's memory.",
        why=f"{what}: {said}" if said else what,
        fix="Use fewer --lanes, a smaller --max-tokens, --activations recompute, or a larger "
        "--vram-cap.",
    )
