"""The gradients that the walk hands over: recycled slots, and micro-batches that are added up."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from support.families import FAMILY_NAMES
from support.full_runs import (
    CPU,
    Recipe,
    batches_of,
    family,
    rows_of,
    settings_of,
    state_of,
)
from support.full_walk import capturing
from torch import Tensor

from slidepack.engine.model.batch import PackedBatch, pack_rows
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.full_driver import StepResult
from slidepack.engine.sliding.state import TrainState


def _gradients(
    shape: ModelShape, state: TrainState, recipe: Recipe, batches: list[PackedBatch]
) -> tuple[StepResult, dict[int, Tensor]]:
    driver, capture = capturing(shape, state, recipe)
    # Twice: the second time the ring and the slots hold what the first step left.
    driver.train_step(batches_of(shape, 7, replace(recipe, micro=1)), settings_of(1, recipe), 0.0)
    result = driver.train_step(batches, settings_of(2, recipe), 0.0)
    assert sorted(capture.grads) == list(range(len(state.units)))
    return result, capture.grads


@pytest.mark.parametrize(
    ("split", "micro"),
    [
        (False, 1),
        (True, 4),
        pytest.param(False, 4, marks=pytest.mark.full),
        pytest.param(True, 1, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_recycled_slots_give_every_layer_the_resident_gradient(
    name: str, split: bool, micro: Literal[1, 4]
) -> None:
    tied = FAMILY_NAMES.index(name) % 2 == 0
    model, shape = family(name, tied)
    recipe = Recipe(split=split, micro=micro, slots=2)
    state = state_of(model, shape, recipe)
    batches = batches_of(shape, 1, recipe)
    resident = _gradients(shape, state, recipe.resident(), batches)
    sliding = _gradients(shape, state, recipe, batches)
    assert sliding[0] == resident[0]
    for unit, grad in resident[1].items():
        assert float(grad.abs().sum()) > 0
        assert torch.equal(sliding[1][unit], grad), state.units[unit].name


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2"])
def test_micro_batches_of_unequal_tokens_equal_one_batch(name: str) -> None:
    model, shape = family(name, False)
    one, four = Recipe(micro=1), Recipe(micro=4)
    state = state_of(model, shape, one)
    batches = batches_of(shape, 1, four)
    counts = [batch.labels.numel() for batch in batches]
    assert len(set(counts)) > 2, "unequal"
    whole, whole_grads = _gradients(shape, state, one, batches_of(shape, 1, one))
    parts, part_grads = _gradients(shape, state, four, batches)
    # Exact: how many tokens there are, and so the weight of each. The rest is the same sum in
    # another order, and products that a library may block in another way.
    assert parts.loss.tokens == whole.loss.tokens == sum(counts)
    assert parts.loss.total == pytest.approx(whole.loss.total, rel=1e-6)
    assert parts.grad_norm == pytest.approx(whole.grad_norm, rel=1e-5)
    for unit, grad in whole_grads.items():
        # An element is a sum over 66 tokens, through three layers: some sqrt(66 * 10) roundings of
        # the largest terms, which are about as large as the largest element.
        atol = 26 * 2.0**-23 * float(grad.abs().max())
        torch.testing.assert_close(part_grads[unit], grad, rtol=0, atol=atol)
    # A mean of the micro-batches' means would be far outside.
    means = [_gradients(shape, state, one, [batch])[0].loss.mean for batch in batches]
    assert abs(sum(means) / 4 / whole.loss.mean - 1) > 1e-4


@pytest.mark.parametrize("split", [False, True], ids=["fp32", "bf16"])
def test_the_same_micro_batch_twice_gives_the_layers_its_gradient_exactly(split: bool) -> None:
    # Each half has weights of 1 / 2S, a power of two less, which no rounding notices; their sum is
    # exact. In bf16 this holds because the sum is made in fp32 and rounded once.
    model, shape = family("qwen3", True)
    recipe = Recipe(split=split)
    state = state_of(model, shape, recipe)
    rows = rows_of(shape, 3)[1]
    batch = pack_rows(rows, shape, CPU, recipe.form.compute_dtype)
    once, once_grads = _gradients(shape, state, recipe, [batch])
    twice, twice_grads = _gradients(shape, state, recipe, [batch, batch])
    assert twice.loss.tokens == 2 * once.loss.tokens
    assert twice.loss.mean == once.loss.mean
    for layer in range(shape.num_layers):
        assert torch.equal(twice_grads[layer], once_grads[layer])
