"""Gradients that are no numbers: with clipping the step is left out, without it is done."""

from dataclasses import replace

import pytest
import torch
from support.full_runs import (
    CPU,
    Recipe,
    batches_of,
    copy_of,
    family,
    same_bits,
    settings_of,
    state_of,
    trainer_of,
)
from torch import Tensor

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.batch import PackedBatch, pack_rows
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.state import TrainState

POISONED = 5
"""A token whose embedding is no number; the head is not tied, so that others do not see it."""


def _poisoned_state(recipe: Recipe, value: float) -> tuple[ModelShape, TrainState]:
    model, shape = family("llama", False)
    state = state_of(model, shape, recipe)
    row = torch.full((shape.hidden,), value)
    state.write(shape.num_layers, POISONED * shape.hidden, row)
    return shape, state


def _poisoned_batch(shape: ModelShape, recipe: Recipe) -> list[PackedBatch]:
    row = EncodedRow(1, (POISONED, 8, 9, 10), (False, True, True, True))
    good = EncodedRow(2, (11, 12, 13), (False, True, True))
    dtype = recipe.form.compute_dtype
    batches = [pack_rows([good], shape, CPU, dtype), pack_rows([row], shape, CPU, dtype)]
    return batches if recipe.micro == 4 else [pack_rows([good, row], shape, CPU, dtype)]


def _clean_batches(shape: ModelShape, recipe: Recipe) -> list[PackedBatch]:
    step = 1
    while any(bool((batch.ids == POISONED).any()) for batch in batches_of(shape, step, recipe)):
        step += 1
    return batches_of(shape, step, recipe)


def _bits(state: TrainState) -> Tensor:
    return torch.cat([one.exp_avg.view(torch.uint8) for one in state.states])


LAYOUTS = [
    Recipe(clip=1.0),
    Recipe(clip=1.0, micro=4, split=True, moments="int8", cpu_share=0.0),
    Recipe(clip=1.0, split=True, moments="bf16", cpu_share=0.5, rows="host"),
    Recipe(clip=1.0, weights="resident"),
]


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("recipe", LAYOUTS, ids=["cpu", "gpu", "shared", "resident"])
def test_with_clipping_the_step_is_left_out(recipe: Recipe, value: float) -> None:
    shape, state = _poisoned_state(recipe, value)
    trainer = trainer_of(shape, state, recipe)
    try:
        clean = _clean_batches(shape, recipe)
        first = trainer.driver.train_step(clean, settings_of(1, recipe), recipe.clip)
        trainer.updates.drain()
        assert first.applied
        before = [copy_of(one) for one in state.states]
        assert _bits(state).any()

        poisoned = _poisoned_batch(shape, recipe)
        result = trainer.driver.train_step(poisoned, settings_of(2, recipe), recipe.clip)
        trainer.updates.drain()
        assert not result.applied
        assert result.loss.mean != result.loss.mean
        assert not torch.isfinite(torch.tensor(result.grad_norm))
        for one, kept in zip(state.states, before, strict=True):
            assert same_bits(one, kept)

        # What comes next is as if that step had not been.
        after = trainer.driver.train_step(clean, settings_of(2, recipe), recipe.clip)
        trainer.updates.drain()
        assert after.applied
    finally:
        trainer.close()
    _, other = _poisoned_state(recipe, value)
    trainer = trainer_of(shape, other, recipe)
    try:
        for step in (1, 2):
            again = trainer.driver.train_step(clean, settings_of(step, recipe), recipe.clip)
        trainer.updates.drain()
    finally:
        trainer.close()
    assert again == after
    for one, kept in zip(state.states, other.states, strict=True):
        assert same_bits(one, kept)


@pytest.mark.parametrize("recipe", LAYOUTS[:3], ids=["cpu", "gpu", "shared"])
def test_without_clipping_the_step_is_done(recipe: Recipe) -> None:
    recipe = replace(recipe, clip=0.0, split=False, moments="fp32")
    shape, state = _poisoned_state(recipe, torch.nan)
    trainer = trainer_of(shape, state, recipe)
    try:
        poisoned = _poisoned_batch(shape, recipe)
        result = trainer.driver.train_step(poisoned, settings_of(1, recipe), 0.0)
        trainer.updates.drain()
    finally:
        trainer.close()
    assert result.applied
    assert result.grad_norm != result.grad_norm
    for layer in range(shape.num_layers):
        assert state.weights(layer).isnan().any()
