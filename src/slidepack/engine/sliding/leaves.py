"""A layer's weights as autograd's leaves, for one layer's backward pass."""

from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from slidepack.engine.model.layers import LayerWeights, layer_over
from slidepack.engine.shape import ModelShape

__all__ = ["layer_leaves"]


def layer_leaves(flat: Tensor, grad: Tensor, shape: ModelShape) -> LayerWeights:
    """Return a layer's weights as leaves whose gradients are added to `grad` in place."""
    weights, grads = layer_over(flat, shape), layer_over(grad, shape)
    leaves: dict[str, Any] = {}
    for field in fields(weights):
        value = getattr(weights, field.name)
        if field.name != "flat" and isinstance(value, Tensor):
            leaf = value.detach().requires_grad_()
            leaf.grad = getattr(grads, field.name)
            leaves[field.name] = leaf
    return replace(weights, **leaves)
