"""Drives that fail, or do half of what they are asked: an error where the run waits, no hang."""

import errno
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from support.full_runs import Recipe, Tier, assert_same, family, run, state_of, steps, trainer_of

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.ring import RingTransport

ALL = Tier(moments=1.0, master=1.0, rows=1.0)
RECIPE = Recipe(split=True, cpu_share=0.5, micro=4, rows="host")
Move = Callable[[int, Sequence[memoryview], int], int]


def _short(move: Move) -> Move:
    """Move a page where more was asked for, every other time."""
    turns = itertools.cycle((True, False))

    def some(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        if next(turns):
            return move(descriptor, [buffers[0][:4096]], offset)
        return move(descriptor, buffers, offset)

    return some


def test_short_transfers_change_no_bit() -> None:
    model, shape = family("llama", False)

    def transport() -> RingTransport:
        return RingTransport(preadv=_short(os.preadv), pwritev=_short(os.pwritev))

    tier = replace(ALL, transport=transport)
    assert_same(run(model, shape, replace(RECIPE, tier=tier), 4), run(model, shape, RECIPE, 4))


@dataclass
class Failing:
    """A system call that fails for good, once it is told to."""

    move: Move
    error: Exception = field(default_factory=lambda: OSError(errno.EIO, "Input/output error"))
    good: int = 1 << 60
    calls: "itertools.count[int]" = field(default_factory=itertools.count)

    def __call__(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        if next(self.calls) >= self.good:
            raise self.error
        return self.move(descriptor, buffers, offset)

    def fail_after(self, good: int) -> None:
        self.calls, self.good = itertools.count(), good


@pytest.mark.parametrize("good", [0, 7, 40])
@pytest.mark.parametrize("clip", [0.0, 1.0], ids=["at-once", "clipped"])
@pytest.mark.parametrize("way", ["read", "write"])
def test_a_drive_that_fails_ends_the_run(way: str, clip: float, good: int) -> None:
    model, shape = family("llama", False)
    calls = {"read": Failing(os.preadv), "write": Failing(os.pwritev)}
    tier = replace(
        ALL,
        chunk=4096,
        transport=lambda: RingTransport(preadv=calls["read"], pwritev=calls["write"]),
    )
    recipe = replace(RECIPE, clip=clip, tier=tier)
    before = threading.active_count()
    state = state_of(model, shape, recipe)
    trainer = trainer_of(shape, state, recipe)
    try:
        steps(trainer, shape, recipe, [1])
        trainer.updates.drain()
        calls[way].fail_after(good)
        # The last updates of a step go on beside the next one, which is first to hear of it.
        with pytest.raises(SlidepackError) as raised:
            steps(trainer, shape, recipe, range(2, 8))
        assert raised.value.report.code == "DISK-FAILED"
    finally:
        trainer.close()
        state.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("way", ["read", "write"])
def test_a_card_that_fails_under_transfers_ends_the_run_and_closes(way: str) -> None:
    # A transfer waits for the card, and raises what that says.
    model, shape = family("llama", False)
    error = RuntimeError("CUDA error: unspecified launch failure")
    calls = {"read": Failing(os.preadv, error), "write": Failing(os.pwritev, error)}
    tier = replace(
        ALL,
        chunk=4096,
        transport=lambda: RingTransport(preadv=calls["read"], pwritev=calls["write"]),
    )
    recipe = replace(RECIPE, clip=1.0, tier=tier)
    before = threading.active_count()
    state = state_of(model, shape, recipe)
    trainer = trainer_of(shape, state, recipe)
    try:
        steps(trainer, shape, recipe, [1])
        trainer.updates.drain()
        calls[way].fail_after(7)
        with pytest.raises(RuntimeError, match="launch failure"):
            steps(trainer, shape, recipe, range(2, 8))
    finally:
        trainer.close()
        state.close()
    assert threading.active_count() == before
