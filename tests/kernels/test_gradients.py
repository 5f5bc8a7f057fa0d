"""Gradients in fp64: autograd of the references, and those written by hand."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from support.head_loss import torch_head_loss
from torch import Tensor

from slidepack.kernels import HeadLoss, add_rms_norm, linear_cross_entropy
from slidepack.kernels.linear_cross_entropy import IGNORED
from slidepack.kernels.reference import (
    cross_entropy_ref,
    geglu_ref,
    lora_ref,
    rms_norm_ref,
    rope_ref,
    swiglu_ref,
)

VOCAB, WIDTH = 11, 7
# As an attribute of the package, the module's name is the function.
MODULE = importlib.import_module("slidepack.kernels.linear_cross_entropy")
# Sums of at most a dozen terms near one: a few dozen roundings of 2^-53.
_close = functools.partial(torch.testing.assert_close, rtol=1e-12, atol=1e-14)


def _normal(*size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=torch.float64)


def _rope(x: Tensor, part: int) -> Tensor:
    # Not an angle's: the derivative holds for any table whose halves are alike.
    cos, sin = (_normal(x.shape[0], part // 2, seed=seed).repeat(1, 2) for seed in (8, 9))
    return rope_ref(x, cos, sin)


@dataclass(frozen=True)
class Reference:
    """One differentiable function and the shapes of its inputs."""

    name: str
    function: Callable[..., Tensor | tuple[Tensor, ...]]
    shapes: tuple[tuple[int, ...], ...]


REFERENCES = [
    Reference("rms_norm", lambda x, w: rms_norm_ref(x, w, 1e-5), ((5, 7), (7,))),
    Reference("rms_norm-1x1", lambda x, w: rms_norm_ref(x, w, 1e-1), ((1, 1), (1,))),
    Reference(
        "rms_norm-plus-one", lambda x, w: rms_norm_ref(x, w, 1e-5, plus_one=True), ((3, 9), (9,))
    ),
    Reference("add_rms_norm", lambda x, r, w: add_rms_norm(x, r, w, 1e-5), ((3, 5), (3, 5), (5,))),
    Reference("rope", lambda x: _rope(x, 6), ((5, 3, 6),)),
    Reference("rope-partial", lambda x: _rope(x, 4), ((3, 1, 7),)),
    Reference("swiglu", swiglu_ref, ((3, 7), (3, 7))),
    Reference("geglu", geglu_ref, ((3, 7), (3, 7))),
    Reference("lora", lambda x, a, b: lora_ref(x, a, b, 0.7), ((3, 7), (2, 7), (5, 2))),
    Reference("lora-rank-1", lambda x, a, b: lora_ref(x, a, b, -1.5), ((1, 3), (1, 3), (9, 1))),
]


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference.name)
def test_references_against_finite_differences(reference: Reference) -> None:
    inputs = [
        _normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(reference.shapes)
    ]
    assert torch.autograd.gradcheck(reference.function, inputs)


@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@pytest.mark.parametrize("soft_cap", [None, 30.0, 2.5])
def test_cross_entropy_ref_against_autograd(soft_cap: float | None, weighted: bool) -> None:
    logits = (_normal(6, VOCAB) * 4.0).requires_grad_()
    labels = torch.tensor([0, VOCAB - 1, 3, 3, 7, 1])
    weights = torch.ones(6, dtype=torch.float64)
    if weighted:
        weights = torch.tensor([1.0, 0.25, 0.0, 3.0, 1e-3, 1.0], dtype=torch.float64)
    losses, gradient = cross_entropy_ref(logits.detach(), labels, weights, soft_cap)
    capped = logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
    expected = weights * torch.nn.functional.cross_entropy(capped, labels, reduction="none")
    expected.sum().backward()
    _close(losses, expected.detach())
    _close(gradient, logits.grad)


IGNORED_LABELS = {
    "none-ignored": [0, 10, 3, 3, 7],
    "some-ignored": [IGNORED, 10, 3, IGNORED, 7],
    "all-ignored": [IGNORED] * 5,
    "no-tokens": [],
}


@pytest.mark.parametrize("labels", IGNORED_LABELS.values(), ids=IGNORED_LABELS)
@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@pytest.mark.parametrize("soft_cap", [None, 2.5])
@pytest.mark.parametrize("chunk", [1, 2, 100], ids="chunk-{}".format)
def test_linear_cross_entropy_against_autograd(
    chunk: int,
    soft_cap: float | None,
    weighted: bool,
    labels: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MODULE, "_CPU_CHUNK_ELEMENTS", chunk * VOCAB)
    tokens = len(labels)
    hidden, weight = _normal(tokens, WIDTH) * 2.0, _normal(VOCAB, WIDTH, seed=1)
    targets = torch.tensor(labels, dtype=torch.int64)
    weights = _normal(tokens, seed=2).abs() if weighted else None
    expected = torch_head_loss(hidden, weight, targets, weights, soft_cap, torch.float64)

    def ours(*, hidden_grad: bool, head_grad: bool, none_ignored: bool = False) -> HeadLoss:
        return linear_cross_entropy(
            hidden,
            weight,
            targets,
            weights_S=weights,
            soft_cap=soft_cap,
            hidden_grad=hidden_grad,
            head_grad=head_grad,
            none_ignored=none_ignored,
        )

    both = ours(hidden_grad=True, head_grad=True)
    for found, wanted in zip(both, expected, strict=True):
        _close(found, wanted)
    assert both.hidden_grad is not None
    assert not both.losses[targets == IGNORED].any()
    assert not both.hidden_grad[targets == IGNORED].any()
    # What else is asked for changes no bit of an answer.
    for wanted_hidden, wanted_head in ((True, False), (False, True), (False, False)):
        some = ours(hidden_grad=wanted_hidden, head_grad=wanted_head)
        _same_or_absent(some, both, (True, wanted_hidden, wanted_head))
    if IGNORED not in labels:
        told = ours(hidden_grad=True, head_grad=True, none_ignored=True)
        _same_or_absent(told, both, (True, True, True))


def _same_or_absent(found: HeadLoss, whole: HeadLoss, asked: tuple[bool, bool, bool]) -> None:
    for part, expected, wanted in zip(found, whole, asked, strict=True):
        assert (part is not None) is wanted
        assert part is None or (expected is not None and torch.equal(part, expected))
