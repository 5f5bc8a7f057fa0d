"""What a row of the table times: an operation of ours and its counterparts, at given sizes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "LLAMA_8B",
    "Function",
    "Operation",
    "Pass",
    "Prepared",
    "Setting",
    "Sizes",
    "Unit",
    "operation",
]

Function = Callable[..., Any]
"""Takes tensors; returns a tensor or a tuple of them."""
Unit = Literal["bytes", "flops"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes of the tensors."""

    tokens: int
    width: int
    ffn: int
    vocab: int
    heads: int
    kv_heads: int
    head: int
    params: int
    """Parameters that one optimizer step covers; a multiple of 1,024."""


LLAMA_8B: Final = Sizes(
    tokens=8192,
    width=4096,
    ffn=14336,
    vocab=128256,
    heads=32,
    kv_heads=8,
    head=128,
    params=1 << 27,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Where an operation's tensors are made, and how large."""

    sizes: Sizes
    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator
    """Of `device`."""

    def random(self, *shape: int, grad: bool = False) -> Tensor:
        """Return a normal tensor, a leaf that requires a gradient where `grad` says so."""
        x = torch.randn(shape, generator=self.generator, device=self.device, dtype=self.dtype)
        return x.requires_grad_(grad)


class Prepared(NamedTuple):
    """A pass that is ready to be run any number of times."""

    call: Callable[[], Any]
    held: tuple[Tensor, ...]
    """Tensors that were there before the call: where it returns one of them, it made nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """A function with its arguments, and which part of its work is timed."""

    function: Function
    inputs: tuple[Tensor, ...]
    """Gradients are taken of those that require one."""
    kind: Literal["forward", "backward", "both"] = "forward"
    """A forward pass records what its backward pass will need, as in training."""
    grad: Tensor | None = None
    """Gradient of the output, for the backward pass alone."""
    overwrites: bool = False
    """Whether it writes into its arguments or into `grad`: it then gets copies."""

    def prepare(self) -> Prepared:
        """Make the call; for the backward pass alone, run the forward pass once."""
        inputs, grad = self.inputs, self.grad
        if self.overwrites:
            inputs = tuple(_copy(x) for x in inputs)
            grad = None if grad is None else _copy(grad)
        held = inputs if grad is None else (*inputs, grad)
        wanted = [x for x in inputs if x.requires_grad]
        if self.kind == "forward":
            return Prepared(lambda: self.function(*inputs), held)
        if self.kind == "both":
            return Prepared(lambda: _loss_and_gradients(self.function, inputs, wanted), held)
        output = self.function(*inputs)
        return Prepared(lambda: torch.autograd.grad(output, wanted, grad, retain_graph=True), held)


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One row of the table."""

    name: str
    amount: int
    """Bytes it must move, or products and sums it must compute."""
    unit: Unit = "bytes"
    ours: Pass
    eager: Pass
    compilable: Pass | None = None
    """What torch.compile gets; None for the eager pass."""
    torch_fused: Pass | None = None
    """Torch's own fused operation, where it has one."""
    liger: Pass | None = None


def operation(
    name: str,
    num_bytes: int,
    inputs: tuple[Tensor, ...],
    *,
    ours: Function,
    eager: Function,
    torch_fused: Function | None = None,
    liger: Function | None = None,
    grad: Tensor | None = None,
) -> Operation:
    """Return a memory-bound operation whose counterparts all take the same arguments.

    Args:
        name: of the row.
        num_bytes: what it must move.
        inputs: arguments of each function.
        ours: our function.
        eager: the same in plain torch.
        torch_fused: torch's own fused operation.
        liger: Liger's; gets copies of the arguments, since some write into them.
        grad: gradient of the output: the backward pass is timed instead of the forward pass.
    """
    kind: Literal["forward", "backward"] = "forward" if grad is None else "backward"

    def timed(function: Function, *, overwrites: bool = False) -> Pass:
        return Pass(function=function, inputs=inputs, kind=kind, grad=grad, overwrites=overwrites)

    return Operation(
        name=name,
        amount=num_bytes,
        ours=timed(ours),
        eager=timed(eager),
        torch_fused=None if torch_fused is None else timed(torch_fused),
        liger=None if liger is None else timed(liger, overwrites=True),
    )


def _copy(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _loss_and_gradients(
    function: Function, inputs: tuple[Tensor, ...], wanted: list[Tensor]
) -> tuple[Tensor, ...]:
    loss: Tensor = function(*inputs)
    return loss.detach(), *torch.autograd.grad(loss, wanted)
