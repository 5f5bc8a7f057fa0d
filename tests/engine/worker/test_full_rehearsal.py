"""A card that is too small for a plan: found before the first step, tightened once, said aloud."""

from pathlib import Path

import msgspec
import pytest
import torch
from support.full_runs import CPU, Recipe, family, state_of

from slidepack.engine.contract.job import OptimSpec
from slidepack.engine.contract.plan import FullPlan, RunPlan
from slidepack.engine.sliding.build import FullTrainer
from slidepack.engine.worker.full_trainee import FullTrainee

PLAN = RunPlan(
    device="cpu",
    precision="fp32",
    layer_weights=("host",),
    layer_activations=("recompute",),
    optimizer_state="host",
    cpu_threads=1,
    micro_batch_tokens=64,
    predicted_device_bytes=0,
    predicted_host_bytes=0,
    predicted_disk_bytes=0,
    reason="a test",
    full=FullPlan(
        weights="slide",
        weight_slots=2,
        grad_slots=1,
        host_grad_slots=1,
        engine="cpu",
        rows="device",
        moments="fp32",
        max_tokens=64,
        longest_row=32,
    ),
)
SMALLER = msgspec.structs.replace(PLAN, micro_batch_tokens=32, reason="halved")


class SmallCard(FullTrainee):
    """Runs out of memory for micro-batches above a bound."""

    bound = 0

    def _rehearse(self) -> FullTrainer:
        if self.micro_batch_tokens > self.bound:
            raise torch.OutOfMemoryError("no room")
        return super()._rehearse()


def _trainee(bound: int, smaller: RunPlan | None, told: list[tuple[str, str]]) -> SmallCard:
    model, shape = family("llama", True)
    trainee = SmallCard(
        Path("unused"),
        shape,
        state_of(model, shape, Recipe()),
        PLAN,
        OptimSpec(),
        CPU,
        lambda: None,
        lambda _plan: smaller,
        lambda code, message: told.append((code, message)),
    )
    trainee.bound = bound
    return trainee


def test_a_plan_is_tightened_once_and_said_aloud() -> None:
    told: list[tuple[str, str]] = []
    trainee = _trainee(32, SMALLER, told)
    assert trainee.reason
    assert trainee.micro_batch_tokens == 32
    assert told == [("GPU-OUT-OF-MEMORY", "halved")]
    trainee.close()


@pytest.mark.parametrize(("bound", "smaller"), [(16, SMALLER), (16, None)])
def test_what_still_does_not_fit_runs_out_of_memory(bound: int, smaller: RunPlan | None) -> None:
    trainee = _trainee(bound, smaller, [])
    with pytest.raises(torch.OutOfMemoryError):
        _ = trainee.reason
    trainee.close()


def test_a_plan_that_fits_is_left_alone() -> None:
    told: list[tuple[str, str]] = []
    trainee = _trainee(64, SMALLER, told)
    assert trainee.reason
    assert trainee.micro_batch_tokens == 64
    assert not told
    trainee.close()
