"""Ten steps against transformers, `torch.optim.AdamW` and `clip_grad_norm_`, in fp32."""

import copy
import statistics
from dataclasses import replace
from typing import Literal

import pytest
import torch
from support.families import FAMILY_NAMES
from support.full_runs import (
    BETA1,
    BETA2,
    EPS,
    Recipe,
    family,
    moments_in,
    rows_of,
    run,
    state_of,
    steps,
    trainer_of,
    weight_in,
)
from transformers import PreTrainedModel

from slidepack.engine.shape import ModelShape

STEPS = 10
SMALL = Recipe(lr=2e-3, weight_decay=0.5)
"""Steps small enough that rounding is not blown up: two runs of transformers that add up the rows'
losses in another order stay within 1e-6 of each other, not within 1e-4 as at 1e-2."""


def _their_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    shape: ModelShape,
    step: int,
    clip: float,
) -> tuple[float, float]:
    """Do a step, row by row; return the mean loss over supervised tokens, and the norm."""
    rows = [row for group in rows_of(shape, step) for row in group]
    supervised = sum(sum(row.supervised[1:]) for row in rows)
    optimizer.zero_grad()
    total = 0.0
    for row in rows:
        logits = model(torch.tensor([row.ids])).logits[0, :-1]
        counted = torch.tensor(row.supervised[1:])
        losses = torch.nn.functional.cross_entropy(
            logits, torch.tensor(row.ids[1:]), reduction="none"
        )
        loss = (losses * counted).sum() / supervised
        loss.backward()
        total += float(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return total, float(norm)


def _compare(family_name: str, tied: bool, recipe: Recipe) -> None:
    theirs, shape = family(family_name, tied)
    start = {path: weight.detach().clone() for path, weight in theirs.named_parameters()}
    recipe = replace(recipe, clip=statistics.median(run(theirs, shape, recipe, STEPS).norms))
    state = state_of(theirs, shape, recipe)
    trainer = trainer_of(shape, state, recipe)
    try:
        ours = steps(trainer, shape, recipe, range(1, STEPS + 1))
        trainer.updates.drain()
    finally:
        trainer.close()

    judge = copy.deepcopy(theirs)
    # Else transformers leaves out what this token's embedding does as an input.
    embedding = judge.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    embedding.padding_idx = None
    groups = [
        {
            "params": [p for p in judge.parameters() if p.ndim > 1],
            "weight_decay": recipe.weight_decay,
        },
        {"params": [p for p in judge.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=(BETA1, BETA2), eps=EPS)
    judged = [_their_step(judge, optimizer, shape, n, recipe.clip) for n in range(1, STEPS + 1)]

    clipped = [norm > recipe.clip for _, norm in judged]
    assert any(clipped) and not all(clipped)
    for result, (loss, norm) in zip(ours, judged, strict=True):
        # Rounding of sums of some 1e4 terms, and of weights that differ by rounding: 2^-23 each,
        # with room for ten steps. Micro-batches weighted wrongly would be off by 1e-3.
        assert result.loss.mean == pytest.approx(loss, rel=1e-5)
        assert result.grad_norm == pytest.approx(norm, rel=1e-4)
    # AdamW divides by the gradient's own size, so an element whose gradients are no larger than
    # their rounding moves by up to lr either way: there is no bound on the largest difference. But
    # such elements are few, and a wrong decay, correction or factor moves all of a tensor: by
    # lr * decay * steps = 1% of a norm, if it is decay.
    squares, count = 0.0, 0
    for path, weight in judge.named_parameters():
        found = weight_in(state, shape, path, weight)
        difference = (found - weight.detach()).abs()
        assert float(difference.flatten().quantile(0.95)) < 1e-2 * recipe.lr, path
        assert float((found - start[path]).abs().mean()) > recipe.lr, path
        # Moments are sums of clipped gradients, which AdamW's own division would hide.
        for name, moment in zip(
            ("exp_avg", "exp_avg_sq"), moments_in(state, shape, path, weight), strict=True
        ):
            judged_moment = optimizer.state[weight][name]
            error = float((moment - judged_moment).norm() / judged_moment.norm())
            assert error < 1e-4, (path, name, error)
        squares += float(difference.double().square().sum())
        count += weight.numel()
    assert (squares / count) ** 0.5 < 1e-2 * recipe.lr


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("llama", True),
        ("mistral-window", False),
        ("qwen2", True),
        ("qwen3", False),
        ("gemma2", True),
        ("gemma3", False),
    ],
)
def test_sliding_on_the_cpu_equals_torch(name: str, tied: bool) -> None:
    _compare(name, tied, replace(SMALL, rows="host"))


@pytest.mark.full
@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_every_family_equals_torch(name: str, tied: bool, micro: Literal[1, 4]) -> None:
    _compare(name, tied, replace(SMALL, micro=micro))
