"""The head's product with its loss: bound by the matrix units."""

from typing import Final

import torch
from torch import Tensor

from slidepack.engine.bench_kernels import liger
from slidepack.engine.bench_kernels.operation import Operation, Pass, Setting
from slidepack.kernels import linear_cross_entropy

__all__ = ["HEAD"]

_HEAD_SCALE: Final = 0.02
"""Spread of a trained head's weights, so that the losses are those of a model."""


def _ours(hidden: Tensor, head: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    result = linear_cross_entropy(
        hidden, head, labels, head_grad=head.requires_grad, none_ignored=True
    )
    gradients = (result.hidden_grad, result.head_grad)
    return result.losses.sum(), *(gradient for gradient in gradients if gradient is not None)


def _materialised(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    logits = hidden @ head.T
    return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum")


def _operation(setting: Setting, name: str, *, products: int, head_grad: bool) -> Operation:
    sizes = setting.sizes
    hidden = setting.random(sizes.tokens, sizes.width, grad=True)
    head = setting.random(sizes.vocab, sizes.width).mul_(_HEAD_SCALE).requires_grad_(head_grad)
    labels = torch.randint(
        0, sizes.vocab, (sizes.tokens,), generator=setting.generator, device=setting.device
    )
    inputs = (hidden, head, labels)
    return Operation(
        name=name,
        amount=products * 2 * sizes.tokens * sizes.width * sizes.vocab,
        unit="flops",
        ours=Pass(function=_ours, inputs=inputs),
        eager=Pass(function=_materialised, inputs=inputs, kind="both"),
        liger=Pass(function=liger.linear_cross_entropy, inputs=inputs, kind="both"),
    )


def frozen_head(setting: Setting) -> Operation:
    """Loss and gradient of the hidden states: logits, and one product back."""
    return _operation(setting, "linear_cross_entropy, frozen head", products=2, head_grad=False)


def trained_head(setting: Setting) -> Operation:
    """Loss and both gradients: logits, and two products back."""
    return _operation(setting, "linear_cross_entropy", products=3, head_grad=True)


HEAD: Final = (frozen_head, trained_head)
"""Builders, in the order of the table; each makes its own tensors."""
