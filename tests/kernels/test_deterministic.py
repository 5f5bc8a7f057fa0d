"""The switch to deterministic operations: on for one backward pass, then as it was."""

from types import SimpleNamespace

import pytest
import torch
from support.attention_rows import normal
from torch import Tensor

from slidepack.kernels.deterministic import deterministic_algorithms, deterministic_backward


class _Watched(torch.autograd.Function):
    """Three times x; notes the mode that each pass ran in."""

    @staticmethod
    def forward(ctx: SimpleNamespace, x: Tensor, modes: list[int]) -> Tensor:
        ctx.modes = modes
        modes.append(torch.get_deterministic_debug_mode())
        return 3 * x

    @staticmethod
    def backward(ctx: SimpleNamespace, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.modes.append(torch.get_deterministic_debug_mode())
        if gradient.isnan().any():
            raise RuntimeError("no number")
        return 3 * gradient, None


@pytest.mark.parametrize("mode", ["default", "warn"])
def test_only_the_backward_pass_is_made_deterministic(mode: str) -> None:
    torch.set_deterministic_debug_mode(mode)
    before = torch.get_deterministic_debug_mode()
    try:
        modes: list[int] = []
        x, frozen = normal(3).requires_grad_(), normal(3, seed=1)
        output = deterministic_backward(lambda a, b: _Watched.apply(a * b, modes), x, frozen)
        assert torch.equal(output, 3 * (x * frozen))
        (2 * output).sum().backward()
        assert modes == [before, 2]
        assert x.grad is not None
        assert torch.equal(x.grad, 6 * frozen)
        assert frozen.grad is None
        failing = deterministic_backward(lambda a: _Watched.apply(a, modes), x)
        with pytest.raises(RuntimeError, match="no number"):
            failing.backward(torch.full((3,), torch.nan, dtype=torch.float64))
        assert torch.get_deterministic_debug_mode() == before
    finally:
        torch.set_deterministic_debug_mode("default")


def test_without_gradients_nothing_is_wrapped() -> None:
    x = normal(3).requires_grad_()
    with torch.no_grad():
        assert not deterministic_backward(lambda a: 2 * a, x).requires_grad
    assert not deterministic_backward(lambda a: 2 * a, x.detach()).requires_grad
    with pytest.raises(KeyError), deterministic_algorithms():
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()
