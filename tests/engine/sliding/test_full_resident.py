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
        ("llama", False, NUMBERS[0], LAYOUTS[0]),
        ("llama", True, NUMBERS[2], LAYOUTS[1]),
        ("mistral-window", True, NUMBERS[4], LAYOUTS[2]),
        ("qwen2", False, NUMBERS[3], LAYOUTS[0]),
        ("qwen3", True, NUMBERS[5], LAYOUTS[0]),
        ("gemma2", True, NUMBERS[2], LAYOUTS[4]),
        ("gemma3", True, NUMBERS[1], LAYOUTS[3]),
        ("gemma3-linear", False, NUMBERS[6], LAYOUTS[5]),
    ],
    ids=lambda x: _words(x) + "-" + _layout_words(x) if isinstance(x, Recipe) else str(x),
)
def test_sliding_equals_resident(name: str, tied: bool, numbers: Recipe, layout: Recipe) -> None:
    _compare(name, tied, numbers, layout)


@pytest.mark.full
@pytest.mark.parametrize("numbers", NUMBERS, ids=_words)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_sliding_equals_resident_everywhere(name: str, tied: bool, numbers: Recipe) -> None:
    # Layouts take turns, so that over the families each meets each of the numbers.
    first = FAMILY_NAMES.index(name) + NUMBERS.index(numbers)
    for turn in (0, 2 + tied):
        _compare(name, tied, numbers, LAYOUTS[(first + turn) % len(LAYOUTS)])
    _resident.cache_clear()


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS, ids=_layout_words)
@pytest.mark.parametrize("numbers", NUMBERS, ids=_words)
def test_every_layout_with_all_numbers(numbers: Recipe, layout: Recipe) -> None:
    _compare("llama", True, numbers, layout)
