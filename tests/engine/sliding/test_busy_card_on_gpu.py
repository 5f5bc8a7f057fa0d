"""Beside another program that keeps the card busy, as a game does, no bit is another than alone."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from support.full_runs import Outcome, Recipe, Tier, assert_same, family, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
_STEPS = 10
_SLIDING = Recipe(
    split=True,
    rows="host",
    slots=2,
    grad_slots=2,
    micro=4,
    device=torch.device("cuda:0"),
    lr=1e-3,
)
# The card's time goes to one process after the other, so launches of ours come late at any place.
_HOG = """
import sys, threading, torch
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
factors = [torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
print("up", flush=True)
while not ended.is_set():
    for _ in range(50):
        factors[0] @ factors[1]
    torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def _hogs() -> Iterator[None]:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline() == "up\n"
        yield
    finally:
        for one in started:
            one.communicate()


def _run(recipe: Recipe) -> Outcome:
    model, shape = family("llama", False)
    outcome = run(model, shape, recipe, _STEPS)
    torch.cuda.synchronize()
    return outcome


_RECIPES = {
    "card-clipped": replace(_SLIDING, cpu_share=0.0, clip=1.0),
    "card-at-once": replace(_SLIDING, cpu_share=0.0),
    "card-clipped-int8": replace(_SLIDING, cpu_share=0.0, clip=1.0, moments="int8"),
    "both-clipped": replace(_SLIDING, cpu_share=0.5, clip=1.0),
    "both-at-once": replace(_SLIDING, cpu_share=0.5),
    "cpu-clipped": replace(_SLIDING, cpu_share=1.0, clip=1.0),
}


@pytest.mark.usefixtures("_hogs")
@pytest.mark.parametrize("again", range(3))
@pytest.mark.parametrize("recipe", _RECIPES.values(), ids=_RECIPES)
def test_two_runs_are_the_same(recipe: Recipe, again: int) -> None:
    slow = replace(recipe, slots=2 + again)
    assert_same(_run(slow), _run(replace(recipe, slots=4)))


@pytest.mark.usefixtures("_hogs")
@pytest.mark.parametrize("clip", [0.0, 1.0], ids=["at-once", "clipped"])
def test_state_on_a_drive_is_that_in_ram(clip: float) -> None:
    recipe = replace(_SLIDING, cpu_share=0.5, clip=clip, slots=3)
    everything = Tier(moments=1.0, master=1.0, rows=1.0)
    assert_same(_run(replace(recipe, tier=everything)), _run(recipe))
