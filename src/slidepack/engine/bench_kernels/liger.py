"""Liger's counterparts, where the user has installed `liger-kernel`; nothing else needs it.

Its backward passes of the norm and of the gated activations write into their arguments, and so does
its rotation. Each therefore works on copies of its own; repeated, it reads what it wrote before,
which changes the values and not the time. They are timed as every other backward pass is, through
autograd: that the saved tensors were overwritten goes unnoticed there.
"""

import importlib
import importlib.metadata
from typing import Any, Final

from torch import Tensor

__all__ = [
    "add_rms_norm",
    "geglu",
    "liger_version",
    "linear_cross_entropy",
    "rms_norm",
    "rope",
    "swiglu",
]

_EPS: Final = 1e-5


def liger_version() -> str | None:
    """Return the version that is installed, or None."""
    try:
        return importlib.metadata.version("liger-kernel")
    except importlib.metadata.PackageNotFoundError:
        return None


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Norm, its arithmetic as in Llama."""
    y: Tensor = _function("rms_norm", "LigerRMSNormFunction").apply(x, weight, _EPS)
    return y


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Residual sum and norm."""
    function = _function("fused_add_rms_norm", "LigerFusedAddRMSNormFunction")
    y, total = function.apply(x, residual, weight, _EPS)
    return y, total


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotation, in place; Liger takes [batch, heads, tokens, size] over memory laid out as ours."""
    turned_q, turned_k = _function("rope", "LigerRopeFunction").apply(
        q[None].transpose(1, 2), k[None].transpose(1, 2), cos[None], sin[None]
    )
    return turned_q.transpose(1, 2)[0], turned_k.transpose(1, 2)[0]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up."""
    y: Tensor = _function("swiglu", "LigerSiLUMulFunction").apply(gate, up)
    return y


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) · up, gelu by its tanh form."""
    y: Tensor = _function("geglu", "LigerGELUMulFunction").apply(gate, up)
    return y


def linear_cross_entropy(hidden: Tensor, head: Tensor, labels: Tensor) -> Tensor:
    """Loss of the head, with Liger's defaults: the head's gradient is summed in its own dtype."""
    function = _function("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction")
    # bias, class weights, ignored label, z-loss, smoothing, reduction
    loss: Tensor = function.apply(hidden, head, labels, None, None, -100, 0.0, 0.0, "sum")[0]
    return loss


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)
