"""A backward pass that gives the same bits every time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["deterministic_algorithms", "deterministic_backward"]


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Make torch's operations deterministic, in the whole process, until the block ends."""
    # One number holds both the switch and whether it only warns. Flash attention takes the
    # warning mode for a no.
    before = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def deterministic_backward(forward: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return `forward(*inputs)`; its backward pass, and nothing else, runs deterministically.

    The backward pass can run once.

    Args:
        forward: what to run; its result depends on `inputs` differentiably and on no other leaf.
        inputs: its arguments.
    """
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in inputs):
        return forward(*inputs)
    output: Tensor = _DeterministicBackward.apply(forward, *inputs)
    return output


class _DeterministicBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, forward: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        # A graph of its own, so that the switch is on for exactly its nodes, and off again even
        # when one of them fails.
        ctx.leaves = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        with torch.enable_grad():
            ctx.output = forward(*ctx.leaves)
        output: Tensor = ctx.output.detach()
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [leaf for leaf in ctx.leaves if leaf.requires_grad]
        with deterministic_algorithms():
            found = iter(torch.autograd.grad(ctx.output, wanted, gradient))
        return None, *(next(found) if leaf.requires_grad else None for leaf in ctx.leaves)
