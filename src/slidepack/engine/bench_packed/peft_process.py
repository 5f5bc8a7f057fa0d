"""Starts PEFT's measurement, in a process of its own that gives all its memory back."""

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

import msgspec
import torch

from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.steps import StepTimes

__all__ = ["PeftAnswer", "PeftResult", "measure_peft"]

_MODULE: Final = "slidepack.engine.bench_packed.peft_baseline"


@dataclass(frozen=True, kw_only=True, slots=True)
class PeftAnswer:
    """What the other process prints."""

    times: StepTimes
    host_peak_bytes: int | None
    trainable_params: int
    adapter_precision: str
    loss: float
    """Of the last step."""
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeftResult:
    """PEFT's measurement, or why there is none."""

    answer: PeftAnswer | None
    why: str | None
    """None where it was measured."""


def measure_peft(options: PackedOptions) -> PeftResult:
    """Time PEFT's steps of one adapter with the same batch and length.

    The caller holds no device memory meanwhile: both processes share the card. Whatever goes wrong,
    transformers and peft not being installed among it, is a result.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", _MODULE, msgspec.json.encode(options).decode()],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())},
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        return PeftResult(answer=None, why=said)
    try:
        # Libraries may have written to standard output before.
        answer = msgspec.json.decode((done.stdout.splitlines() or [""])[-1], type=PeftAnswer)
    except msgspec.DecodeError as error:
        return PeftResult(answer=None, why=f"its answer cannot be read: {error}")
    return PeftResult(answer=answer, why=None)
