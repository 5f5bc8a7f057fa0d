"""Timed steps, waited for one by one: ours, the ceiling's and PEFT's by the same clock."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from slidepack.engine.bench_packed.options import PackedOptions

__all__ = ["StepTimes", "time_steps"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """What a series of steps took."""

    step_seconds: tuple[float, ...]
    """Of each measured step, from an idle device to an idle device."""
    device_peak_bytes: int
    """That tensors held, warm-up included; 0 without a card."""
    device_reserved_bytes: int
    """That the allocator held."""

    @property
    def median_seconds(self) -> float:
        """Of a step."""
        return statistics.median(self.step_seconds)


def time_steps(
    step: Callable[[], Any],
    options: PackedOptions,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> StepTimes:
    """Run the warm-up and the measured steps, and take the memory's peaks.

    Args:
        step: does one step.
        options: how many.
        device: that is waited for after each.
        clock: tells seconds.
    """
    on_card = device.type == "cuda"
    if on_card:
        torch.cuda.reset_peak_memory_stats(device)
    seconds = []
    for _ in range(options.warm_up + options.steps):
        if on_card:
            torch.cuda.synchronize(device)
        begun = clock()
        step()
        if on_card:
            torch.cuda.synchronize(device)
        seconds.append(clock() - begun)
    return StepTimes(
        step_seconds=tuple(seconds[options.warm_up :]),
        device_peak_bytes=torch.cuda.max_memory_allocated(device) if on_card else 0,
        device_reserved_bytes=torch.cuda.max_memory_reserved(device) if on_card else 0,
    )
