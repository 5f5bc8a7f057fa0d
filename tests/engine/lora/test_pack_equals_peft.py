"""Lanes of every kind in one pack, against each lane alone in PEFT, in fp64."""

from pathlib import Path

import pytest
import torch
from support.lanes import TinyLane, pack_on, tiny_decoder
from support.peft_lane import PeftLane

from slidepack.engine.contract.job import LoraMethod, OptimSpec

LANES = (
    TinyLane(
        name="thin",
        method=LoraMethod(rank=1, alpha=1, targets=("down_proj",)),
        optim=OptimSpec(lr=1e-2, schedule="constant", warmup_fraction=0.0, clip_norm=0.0),
        lengths=(5, 12),
        total_steps=20,
    ),
    TinyLane(
        name="rslora",
        method=LoraMethod(rank=3, alpha=5, rslora=True, targets=("v_proj", "q_proj")),
        optim=OptimSpec(
            lr=3e-3, schedule="linear", warmup_fraction=0.2, weight_decay=0.1, clip_norm=3.5
        ),
        lengths=(19,),
        total_steps=20,
    ),
    TinyLane(
        name="all",
        method=LoraMethod(rank=8, alpha=16),
        optim=OptimSpec(lr=2e-3, schedule="cosine", warmup_fraction=0.05, clip_norm=5.5),
        lengths=(3, 8, 2, 6),
        total_steps=13,
    ),
    TinyLane(
        name="wide",
        method=LoraMethod(rank=24, alpha=12, targets=("k_proj", "gate_proj", "down_proj")),
        optim=OptimSpec(
            lr=5e-3, schedule="cosine", warmup_fraction=0.3, weight_decay=0.01, clip_norm=1.2
        ),
        lengths=(30, 9),
        total_steps=7,
    ),
    TinyLane(
        name="short",
        method=LoraMethod(rank=5, alpha=40, targets=("o_proj", "up_proj")),
        optim=OptimSpec(lr=1e-3, schedule="linear", warmup_fraction=0.0, clip_norm=0.5),
        lengths=(7, 7, 7),
        total_steps=2,
    ),
)


@pytest.mark.parametrize("padded", [False, True], ids=["row-by-row", "padded-batch"])
@pytest.mark.parametrize("max_tokens", [1 << 20, 40], ids=["one-row", "micro-batches"])
def test_twenty_steps_of_a_pack_equal_each_lane_in_peft(
    tmp_path: Path, padded: bool, max_tokens: int
) -> None:
    decoder = tiny_decoder(tmp_path, torch.float64)
    pack = pack_on(decoder, LANES, max_tokens=max_tokens)
    judges = {
        lane.name: PeftLane(
            tmp_path, pack.lanes[lane.name], lane.optim, lane.total_steps, padded=padded
        )
        for lane in LANES
    }
    norms: dict[str, list[float]] = {lane.name: [] for lane in LANES}
    differences: list[float] = []
    for step in range(20):
        present = [lane for lane in LANES if lane.name in pack.lanes]
        work = {lane.name: lane.work(step, decoder.shape.vocab) for lane in present}
        outcomes = pack.step(work)
        for lane in present:
            loss, norm = judges[lane.name].step(work[lane.name].rows)
            outcome = outcomes[lane.name]
            differences += [abs(outcome.loss.mean - loss), abs(outcome.grad_norm - norm)]
            norms[lane.name].append(norm)
            if step + 1 == lane.total_steps:
                differences.append(judges[lane.name].largest_difference(pack.lanes[lane.name]))
                pack.leave(lane.name)
    assert not pack.lanes
    assert all(difference <= 1e-10 for difference in differences)
    for lane in LANES[1:4]:
        clipped = {norm > lane.optim.clip_norm for norm in norms[lane.name]}
        assert clipped == {True, False}, f"{lane.name} is clipped always or never"
