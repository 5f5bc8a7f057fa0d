"""Ten steps against transformers, `torch.optim.AdamW` and `clip_grad_norm_`, in fp32."""

import copy
import statistics
from dataclasses import replace

import pytest
import torch
from support.families import FAMILY_NAMES
from support.full_runs import (
    BETA1,
    BETA2,
    EPS,
    Recipe,
    family,
    rows_of,
    run,
    settings_of,
    state_of,
    steps,
    trainer_of,
    weight_in,
)
from transformers import PreTrainedModel

from slidepack.engine.shape import ModelShape

STEPS = 10
LR = 1e-2
DECAY = 0.1


def _their_step(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, shape: ModelShape, step: int, clip: float
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


def _compare(name: str, tied: bool, recipe: Recipe) -> None:
    theirs, shape = family(name, tied)
    start = {path: weight.detach().clone() for path, weight in theirs.named_parameters()}
    recipe = replace(recipe, clip=statistics.median(run(theirs, shape, recipe, 6).norms))
    state = state_of(theirs, shape, recipe)
    trainer = trainer_of(shape, state, recipe)
    try:
        ours = steps(trainer, shape, recipe, range(1, STEPS + 1))
        trainer.updates.drain()
    finally:
        trainer.close()

    judge = copy.deepcopy(theirs)
    groups = [
        {"params": [p for p in judge.parameters() if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in judge.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=(BETA1, BETA2), eps=EPS)
    judged = [_their_step(judge, optimizer, shape, n, recipe.clip) for n in range(1, STEPS + 1)]

    clipped = [norm > recipe.clip for _, norm in judged]
    assert any(clipped) and not all(clipped)
    for step, (result, (loss, norm)) in enumerate(zip(ours, judged, strict=True)):
        # The first step's weights are the same: rounding alone, of sums over three layers.
        assert result.loss.mean == pytest.approx(loss, rel=1e-6 if step == 0 else 1e-4)
        assert result.grad_norm == pytest.approx(norm, rel=1e-5 if step == 0 else 1e-3)
    # AdamW divides by the gradient's own size, so an element whose gradients are no larger than
    # their rounding moves by up to lr either way: there is no bound on the largest difference. But
    # such elements are few, and a wrong decay, correction or factor moves all of a tensor: by
    # lr * decay * weight * steps, 1e-2 for a norm, if it is decay.
    squares, count = 0.0, 0
    for path, weight in judge.named_parameters():
        found = weight_in(state, shape, path, weight)
        difference = (found - weight.detach()).abs()
        assert float(difference.flatten().quantile(0.95)) < 1e-2 * LR, path
        assert float((found - start[path]).abs().mean()) > LR, path
        squares += float(difference.double().square().sum())
        count += weight.numel()
    assert (squares / count) ** 0.5 < 0.05 * LR


def test_the_settings_are_those_of_the_judge() -> None:
    scalars = settings_of(1, torch.device("cpu")).scalars_host
    expected = [1.0, LR / (1.0 - BETA1), (1.0 - BETA2) ** 0.5, 1.0 - LR * DECAY]
    torch.testing.assert_close(scalars, torch.tensor(expected))


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("llama", True),
        ("llama3", False),
        ("mistral-window", False),
        ("qwen2", True),
        ("qwen3", False),
        ("gemma2", True),
        ("gemma3", False),
    ],
)
def test_sliding_on_the_cpu_equals_torch(name: str, tied: bool) -> None:
    _compare(name, tied, Recipe(rows="host"))


@pytest.mark.full
@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_every_family_equals_torch(name: str, tied: bool, micro: int) -> None:
    _compare(name, tied, Recipe(micro=4 if micro == 4 else 1))
