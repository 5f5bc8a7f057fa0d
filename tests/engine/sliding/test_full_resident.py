"""Sliding equals resident bit for bit, whatever slides and whichever engine updates."""

import functools
import statistics
from dataclasses import replace

import pytest
from support.families import FAMILY_NAMES
from support.full_runs import Outcome, Recipe, assert_same, family, run

NUMBERS = (
    Recipe(),
    Recipe(clip=1.0),
    Recipe(micro=4, clip=1.0),
    Recipe(split=True, micro=4),
    Recipe(split=True, moments="bf16", clip=1.0),
    Recipe(split=True, moments="int8", micro=4, clip=1.0),
    Recipe(moments="bf16", micro=4),
    Recipe(moments="int8"),
)
"""Everything that changes the numbers; every pair of micro-batches, clipping and master is there.
A clip of 1 stands for the middle of the norms, so that it acts on half of the steps."""
LAYOUTS = (
    Recipe(rows="host", cpu_share=0.5, slots=2),
    Recipe(rows="device", cpu_share=1.0, slots=3, grad_slots=2),
    Recipe(rows="host", cpu_share=0.0, slots=3),
    Recipe(rows="device", cpu_share=0.0, slots=2, grad_slots=2),
    Recipe(rows="host", cpu_share=1.0, slots=2),
    Recipe(rows="device", cpu_share=0.5, slots=3),
)
"""Everything that must not; every pair of rows, engines and slots is there."""


@functools.cache
def _resident(name: str, tied: bool, numbers: Recipe) -> tuple[Recipe, Outcome]:
    """Run without sliding; return the run, and its recipe with the clip norm that it had."""
    model, shape = family(name, tied)
    recipe = numbers.resident()
    if not numbers.clip:
        return recipe, run(model, shape, recipe)
    probe = run(model, shape, replace(recipe, clip=0.0), 6)
    recipe = replace(recipe, clip=statistics.median(probe.norms))
    outcome = run(model, shape, recipe)
    assert min(outcome.norms) < recipe.clip < max(outcome.norms), "clipping on some steps only"
    return recipe, outcome


def _compare(name: str, tied: bool, numbers: Recipe, layout: Recipe) -> None:
    recipe, resident = _resident(name, tied, numbers)
    sliding = replace(
        recipe,
        weights="slide",
        rows=layout.rows,
        cpu_share=layout.cpu_share,
        slots=layout.slots,
        grad_slots=layout.grad_slots,
    )
    model, shape = family(name, tied)
    ours = run(model, shape, sliding)
    assert all(result.applied for result in ours.results)
    assert ours.results[0] != ours.results[-1]
    assert_same(ours, resident)


def _words(recipe: Recipe) -> str:
    master = "split" if recipe.split else "fp32"
    words = [master, recipe.moments, f"micro{recipe.micro}"] + ["clip"] * bool(recipe.clip)
    return "-".join(words)


def _layout_words(recipe: Recipe) -> str:
    return f"{recipe.rows}-cpu{recipe.cpu_share}-slots{recipe.slots}"


@pytest.mark.parametrize(
    ("name", "tied", "numbers", "layout"),
    [
        pytest.param(name, tied, NUMBERS[numbers], LAYOUTS[layout], id=name)
        for name, tied, numbers, layout in (
            ("llama", True, 2, 1),
            ("mistral-window", False, 4, 2),
            ("qwen2", False, 3, 0),
            ("qwen3", True, 5, 0),
            ("gemma2", True, 2, 4),
            ("gemma3", True, 1, 3),
            ("gemma3-linear", False, 6, 5),
        )
    ],
)
def test_sliding_equals_resident(name: str, tied: bool, numbers: Recipe, layout: Recipe) -> None:
    _compare(name, tied, numbers, layout)


@pytest.mark.parametrize("clip", [pytest.param(0.0, marks=pytest.mark.full), 5.0])
def test_moving_units_between_the_engines_changes_no_bit(clip: float) -> None:
    model, shape = family("qwen3", False)
    recipe = Recipe(split=True, clip=clip, cpu_share=0.5)
    assert_same(run(model, shape, recipe, turns=True), run(model, shape, recipe.resident()))


@pytest.mark.full
@pytest.mark.parametrize("numbers", NUMBERS, ids=_words)
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_sliding_equals_resident_everywhere(name: str, numbers: Recipe) -> None:
    # Heads and layouts take turns, so that each family meets both heads and every layout.
    turn = FAMILY_NAMES.index(name) + NUMBERS.index(numbers)
    for layout in (turn, turn + 2):
        _compare(name, turn % 2 == 0, numbers, LAYOUTS[layout % len(LAYOUTS)])
    _resident.cache_clear()


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS, ids=_layout_words)
@pytest.mark.parametrize("numbers", NUMBERS, ids=_words)
def test_every_layout_with_all_numbers(numbers: Recipe, layout: Recipe) -> None:
    _compare("llama", True, numbers, layout)
