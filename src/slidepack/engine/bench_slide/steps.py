"""Timed training steps, which are not waited for one by one."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.batch import PackedBatch, micro_batches, pack_rows
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.full_driver import FullDriver, StepResult
from slidepack.engine.sliding.updates import StepSettings
from slidepack.kernels import adamw_scalars

__all__ = ["Stepper", "Timing", "random_batches", "time_steps"]

_LR: Final = 1e-5
_WEIGHT_DECAY: Final = 0.1
_BETA1: Final = 0.9
_BETA2: Final = 0.999
_EPS: Final = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """What a series of steps took."""

    step_seconds: tuple[float, ...]
    """From one step's return to the next: a step's last updates go on beside its successor."""
    total_seconds: float
    """Of all of them, from an idle machine to an idle machine."""
    last: StepResult

    @property
    def mean_step_seconds(self) -> float:
        """The total over the number of steps: the last step's tail is counted."""
        return self.total_seconds / len(self.step_seconds)


class Stepper:
    """Runs one step after the other over the same batches."""

    def __init__(
        self,
        driver: FullDriver,
        batches: Sequence[PackedBatch],
        device: torch.device,
        clip: float,
        *,
        frozen: bool,
    ) -> None:
        """Bind the walk.

        Args:
            driver: the walk.
            batches: of each step.
            device: where it runs.
            clip: gradient norm above which gradients are scaled down; 0 for none.
            frozen: learn at a rate of 0. The work is the same, and layers that share their storage
                do not wreck each other.
        """
        self._driver = driver
        self._batches = batches
        self._device = device
        self._clip = clip
        self._lr = 0.0 if frozen else _LR
        self.done = 0

    def step(self) -> StepResult:
        """Do the next step; its last updates may still be under way when this returns."""
        self.done += 1
        scalars = adamw_scalars(
            torch.tensor(self.done),
            torch.tensor(1.0),
            lr=self._lr,
            beta1=_BETA1,
            beta2=_BETA2,
            weight_decay=_WEIGHT_DECAY,
        )
        settings = StepSettings(
            scalars_host=scalars,
            scalars_device=scalars.to(self._device),
            beta1=_BETA1,
            beta2=_BETA2,
            eps=_EPS,
        )
        return self._driver.train_step(self._batches, settings, self._clip)


def random_batches(
    shape: ModelShape,
    device: torch.device,
    dtype: torch.dtype,
    *,
    batch: int,
    seq: int,
    micro_tokens: int,
) -> list[PackedBatch]:
    """Return the micro-batches of a step of random rows of equal length."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        EncodedRow(
            line,
            tuple(torch.randint(0, shape.vocab, (seq,), generator=generator).tolist()),
            (True,) * seq,
        )
        for line in range(batch)
    ]
    return [pack_rows(group, shape, device, dtype) for group in micro_batches(rows, micro_tokens)]


def time_steps(
    step: Callable[[], StepResult],
    finish: Callable[[], Any],
    steps: int,
    warm_up: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Run the warm-up and the measured steps.

    Args:
        step: does one step.
        finish: waits until nothing is under way; called after the warm-up and after the last step.
        steps: to measure.
        warm_up: before them.
        clock: tells seconds.
    """
    for _ in range(warm_up):
        step()
    finish()
    marks = [clock()]
    for _ in range(steps):
        last = step()
        marks.append(clock())
    finish()
    seconds = tuple(after - before for before, after in itertools.pairwise(marks))
    return Timing(step_seconds=seconds, total_seconds=clock() - marks[0], last=last)
