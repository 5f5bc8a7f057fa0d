"""State on a drive on a real card: through pinned stages, no bit is another than from RAM."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.full_runs import Outcome, Recipe, Tier, assert_same, family, run

from slidepack.engine.nvme.choose import open_transport
from slidepack.engine.sliding.state import MomentFormat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
STEPS = 10
SLIDING = Recipe(
    split=True,
    rows="host",
    slots=3,
    grad_slots=2,
    micro=4,
    device=torch.device("cuda:0"),
    lr=1e-3,
)
ALL = Tier(moments=1.0, master=1.0, rows=1.0)
SOME = Tier(moments=0.6, master=0.3, rows=0.5)


def _run(recipe: Recipe, *, tied: bool = False) -> Outcome:
    model, shape = family("llama", tied)
    outcome = run(model, shape, recipe, STEPS)
    torch.cuda.synchronize()
    return outcome


@pytest.mark.parametrize("clip", [0.0, 1.0], ids=["at-once", "clipped"])
@pytest.mark.parametrize("cpu_share", [0.0, 1.0, 0.5, None], ids=["gpu", "cpu", "both", "any"])
@pytest.mark.parametrize("tier", [ALL, SOME], ids=["all", "some"])
def test_a_drive_gives_the_bits_of_ram(tier: Tier, cpu_share: float | None, clip: float) -> None:
    recipe = replace(SLIDING, cpu_share=cpu_share, clip=clip)
    assert_same(_run(replace(recipe, tier=tier)), _run(recipe))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_layers_that_stay_on_the_card_are_renewed_there(tied: bool) -> None:
    recipe = replace(SLIDING, weights="resident", cpu_share=0.5)
    assert_same(_run(replace(recipe, tier=ALL), tied=tied), _run(recipe, tied=tied))


def test_8_bit_moments() -> None:
    recipe = replace(SLIDING, moments="int8", cpu_share=0.0)
    assert_same(_run(replace(recipe, tier=ALL)), _run(recipe))


@pytest.mark.parametrize("clip", [0.0, 1.0], ids=["at-once", "clipped"])
@pytest.mark.parametrize("cpu_share", [0.0, 1.0, 0.5], ids=["gpu", "cpu", "both"])
@pytest.mark.parametrize("moments", ["fp32", "int8"])
def test_kvikio_between_the_drive_and_the_card(
    moments: MomentFormat, cpu_share: float, clip: float
) -> None:
    pytest.importorskip("kvikio")
    # Where the driver has no GPUDirect Storage, its own POSIX mode moves what is the card's.
    kvikio = replace(ALL, transport=partial(open_transport, device_memory=True, wanted="kvikio"))
    recipe = replace(SLIDING, moments=moments, cpu_share=cpu_share, clip=clip)
    assert_same(_run(replace(recipe, tier=kvikio)), _run(recipe))
