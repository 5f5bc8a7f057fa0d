"""State on a drive changes no bit: every share of it against RAM, over twenty steps."""

import functools
from dataclasses import replace

import pytest
from support.full_runs import Outcome, Recipe, Tier, assert_same, family, run

FORMS = {
    "fp32": Recipe(),
    "split": Recipe(split=True, moments="bf16"),
    "int8": Recipe(split=True, moments="int8", cpu_share=0.0),
    "both-engines": Recipe(split=True, cpu_share=0.5),
    "any-engine": Recipe(split=True, cpu_share=None),
}
TIERS = {
    "moments": Tier(moments=1.0),
    "some-moments": Tier(moments=0.3),
    "state": Tier(moments=1.0, master=1.0),
    "some-state": Tier(moments=0.6, master=0.3),
    "rows": Tier(rows=1.0),
    "everything": Tier(moments=1.0, master=1.0, rows=1.0),
    "some": Tier(moments=0.3, master=0.3, rows=0.3),
}
CLIPS = {"at-once": 0.0, "clipped": 1.0}
QUICK = {
    ("fp32", "everything", "at-once"),
    ("fp32", "some", "clipped"),
    ("split", "some-state", "clipped"),
    ("int8", "everything", "clipped"),
    ("both-engines", "everything", "at-once"),
    ("both-engines", "some", "clipped"),
    ("any-engine", "everything", "clipped"),
}
CASES = [
    pytest.param(
        form,
        tier,
        clip,
        marks=[] if (form, tier, clip) in QUICK else [pytest.mark.full],
        id=f"{form}-{tier}-{clip}",
    )
    for form in FORMS
    for tier in TIERS
    for clip in CLIPS
]


@functools.cache
def _in_ram(form: str, clip: str) -> Outcome:
    model, shape = family("llama", False)
    return run(model, shape, _recipe(form, clip))


def _recipe(form: str, clip: str) -> Recipe:
    return replace(FORMS[form], clip=CLIPS[clip], micro=4, rows="host")


@pytest.mark.parametrize(("form", "tier", "clip"), CASES)
def test_a_drive_gives_the_bits_of_ram(form: str, tier: str, clip: str) -> None:
    model, shape = family("llama", False)
    recipe = replace(_recipe(form, clip), tier=TIERS[tier])
    assert_same(run(model, shape, recipe), _in_ram(form, clip))


@pytest.mark.full
def test_a_tied_head_whose_ends_are_on_a_drive() -> None:
    model, shape = family("gemma2", True)
    recipe = Recipe(split=True, cpu_share=0.5, clip=1.0, micro=4, rows="host")
    on_drive = replace(recipe, tier=TIERS["everything"])
    assert_same(run(model, shape, on_drive), run(model, shape, recipe))
