"""Every fused operation at the sizes of Llama 8B, against the GPU's limits and its counterparts."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import triton

from slidepack.engine.bench_kernels.elementwise import ELEMENTWISE
from slidepack.engine.bench_kernels.head import HEAD
from slidepack.engine.bench_kernels.liger import liger_version
from slidepack.engine.bench_kernels.lora import lora_row, lora_shapes
from slidepack.engine.bench_kernels.measure import GpuMeter, current_gpu, measure
from slidepack.engine.bench_kernels.operation import LLAMA_8B, Operation, Setting
from slidepack.engine.bench_kernels.optimizer import OPTIMIZER

__all__ = ["bench_kernels", "bench_lora_linear", "llama_8b", "versions"]


def bench_kernels() -> list[dict[str, Any]]:
    """Time every operation on the current GPU.

    Returns:
        One row an operation, see `measure`.

    Raises:
        RuntimeError: there is no GPU.
    """
    setting = llama_8b()
    return [
        *_rows(ELEMENTWISE, setting),
        *_rows(OPTIMIZER, setting),
        *_rows(HEAD, setting),
    ]


def bench_lora_linear() -> list[dict[str, Any]]:
    """Time a linear with the adapters of many lanes on the current GPU.

    Returns:
        One row a shape, see `lora_row`.

    Raises:
        RuntimeError: there is no GPU.
    """
    setting = llama_8b()
    meter = GpuMeter(setting.device)
    side_stream = torch.cuda.Stream(setting.device)  # type: ignore[no-untyped-call]  # torch has no types here
    rows = []
    for shape in lora_shapes(setting.sizes):
        rows.append(lora_row(setting, shape, meter, side_stream=side_stream))
        torch.cuda.empty_cache()
    return rows


def llama_8b() -> Setting:
    """Return the sizes of Llama 8B on the current GPU, in bf16.

    Raises:
        RuntimeError: there is no GPU.
    """
    device = current_gpu()
    return Setting(
        sizes=LLAMA_8B,
        device=device,
        dtype=torch.bfloat16,
        generator=torch.Generator(device).manual_seed(0),
    )


def versions() -> dict[str, str | None]:
    """Return the versions that the timings depend on; None for Liger where it is not installed."""
    return {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "liger": liger_version(),
    }


def _rows(
    builders: Iterable[Callable[[Setting], Operation]], setting: Setting
) -> list[dict[str, Any]]:
    meter = GpuMeter(setting.device)
    with_liger = liger_version() is not None
    rows = []
    for build in builders:
        rows.append(measure(build(setting), meter, with_liger=with_liger))
        # Each operation's tensors are gone here; a small card needs their room for the next.
        torch.cuda.empty_cache()
    return rows
