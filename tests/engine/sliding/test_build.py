"""A trainer that cannot be put together holds nothing; one that is begins with settled files."""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.full_runs import CPU, Recipe, Tier, cache_folder, family, state_of, trainer_of

from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.sliding.build import FullSetup, build_full

ALL = Tier(moments=1.0, master=1.0, rows=1.0)
TOO_MANY = 1 << 44


def _setup(shape: Any, tier: Tier, **changes: Any) -> FullSetup:
    values: dict[str, Any] = {
        "device": CPU,
        "weights": "slide",
        "weight_slots": 2,
        "grad_slots": 1,
        "host_grad_slots": 1,
        "cpu_share": 0.5,
        "rows": "host",
        "max_tokens": 64,
        "max_micro_tokens": 64,
        "accumulate": False,
        "clip": True,
        "cpu_threads": 1,
        "cache": cache_folder(),
        **tier.options(shape),
    }
    return FullSetup(**(values | changes))


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("tier", "changes"),
    [
        pytest.param(ALL, {"max_micro_tokens": TOO_MANY}, id="stages of rows on a drive"),
        pytest.param(
            replace(ALL, rows=0.0), {"max_micro_tokens": TOO_MANY}, id="buffers of rows on the card"
        ),
        pytest.param(ALL, {"host_grad_slots": TOO_MANY, "clip": False}, id="gradients that wait"),
    ],
)
def test_running_out_of_memory_leaves_no_thread_and_no_file(
    tier: Tier, changes: dict[str, Any]
) -> None:
    model, shape = family("llama", False)
    state = state_of(model, shape, Recipe(tier=tier))
    # Opens what is opened once in a process.
    build_full(shape, state, _setup(shape, tier)).close()
    threads, files = threading.active_count(), _open_files()
    with pytest.raises((RuntimeError, OSError, OverflowError)):
        build_full(shape, state, _setup(shape, tier, **changes))
    assert (threading.active_count(), _open_files()) == (threads, files)
    # What was given up is there for a second try.
    build_full(shape, state, _setup(shape, tier)).close()
    state.close()


class Counting:
    """Counts what is written."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, descriptor: int, views: Sequence[memoryview], offset: int) -> int:
        self.calls += 1
        return os.pwritev(descriptor, views, offset)


def test_what_was_set_by_hand_is_on_the_drive_before_engines_begin() -> None:
    drive = Counting()
    model, shape = family("llama", False)
    recipe = Recipe(
        cpu_share=0.5, tier=replace(ALL, transport=lambda: RingTransport(pwritev=drive))
    )
    state = state_of(model, shape, recipe)
    before = drive.calls
    trainer = trainer_of(shape, state, recipe)
    settled = drive.calls
    assert settled > before, "the last chunk was still open"
    assert state.tier is not None
    for unit in range(len(state.units)):
        assert Path(state.tier.source(unit).paths[0]).exists()
        state.tier.target(unit)
    assert drive.calls == settled, "whoever asks for a file writes nothing"
    # To change state by hand beside engines is a fault of ours, told at once.
    state.write(0, 0, torch.zeros(8))
    with pytest.raises(AssertionError, match="by hand"):
        state.tier.source(0)
    with pytest.raises(AssertionError, match="by hand"):
        state.tier.target(1)
    state.tier.settle()
    state.tier.source(0)
    trainer.close()
    state.close()
