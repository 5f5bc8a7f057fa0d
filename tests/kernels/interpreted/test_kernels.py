import pytest
import torch
from support.kernel_cases import Case, cases, judge
from support.lane_states import BETAS, LANES, lane_numbers, lane_state, moved, tensors
from torch import Tensor

from slidepack.kernels.adamw import (
    ADAMW_BLOCK,
    AdamWState,
    _adamw_plain,
    adamw_launch,
    adamw_scalars,
    join_master,
    split_master,
    squared_norm_launch,
)
from slidepack.kernels.lane_adamw import block_squares_launch, lane_adamw_launch
from slidepack.kernels.linear_cross_entropy import cross_entropy_launch
from slidepack.kernels.nf4 import dequantise_nf4, dequantise_nf4_launch, quantise_nf4
from slidepack.kernels.readback import readback_launch
from slidepack.kernels.reference import cross_entropy_ref


@pytest.mark.parametrize("case", cases(large=False), ids=lambda case: case.name)
def test_within_the_error_budget(case: Case) -> None:
    judge(case, torch.float32, "cpu")


@pytest.mark.parametrize("vocab", [3, 130, 9001])
@pytest.mark.parametrize("soft_cap", [None, 2.5])
def test_cross_entropy(vocab: int, soft_cap: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, vocab, generator=generator) * 6.0
    labels = torch.tensor([0, vocab - 1, 1, vocab // 2])
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0])
    true_losses, true_grad = cross_entropy_ref(logits.double(), labels, weights.double(), soft_cap)
    losses = torch.full((4,), float("nan"))
    ours = logits.clone()
    cross_entropy_launch(ours, labels, weights, losses, soft_cap, backward=True)
    # The sum over the vocabulary is rounded about sqrt(V) times in units of its largest term.
    tolerance = 4e-7 * max(8.0, vocab**0.5)
    torch.testing.assert_close(losses.double(), true_losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours.double(), true_grad, rtol=1e-5, atol=tolerance)
    only = torch.full((4,), float("nan"))
    untouched = logits.clone()
    cross_entropy_launch(untouched, labels, weights, only, soft_cap, backward=False)
    assert torch.equal(only, losses)
    assert torch.equal(untouched, logits)


def test_cross_entropy_survives_extreme_logits() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [float("-inf"), 0.0, 1.0]])
    losses = torch.empty(2)
    cross_entropy_launch(logits, torch.tensor([1, 2]), torch.ones(2), losses, None, backward=True)
    torch.testing.assert_close(losses, torch.tensor([2e4, 0.3132617]), rtol=1e-6, atol=1e-6)
    assert torch.isfinite(logits).all()


def _state(params: Tensor, moments: str, *, split: bool) -> AdamWState:
    count = params.numel()
    blocks = -(-count // 1024)
    master, remainder = split_master(params) if split else (params.clone(), None)
    if moments == "int8":
        return AdamWState(
            master,
            remainder,
            torch.zeros(count, dtype=torch.int8),
            torch.zeros(count, dtype=torch.uint8),
            torch.zeros(blocks),
            torch.zeros(blocks),
        )
    dtype = torch.float32 if moments == "fp32" else torch.bfloat16
    zeros = torch.zeros(count, dtype=dtype)
    return AdamWState(master, remainder, zeros, zeros.clone())


@pytest.mark.parametrize("count", [1, 1024, 2500])
@pytest.mark.parametrize(("moments", "split"), [("fp32", False), ("fp32", True), ("int8", True)])
def test_adamw_equals_its_plain_form(count: int, moments: str, split: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    params = torch.randn(count, generator=generator)
    fused, plain = (_state(params, moments, split=split) for _ in range(2))
    for step in range(1, 5):
        grad = torch.randn(count, generator=generator) * 10.0 ** (step - 3)
        scalars = adamw_scalars(
            torch.tensor(step),
            torch.tensor(0.7),
            lr=1e-2,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.1,
        )
        adamw_launch(grad, fused, scalars, beta1=0.9, beta2=0.999, eps=1e-8)
        _adamw_plain(grad, plain, scalars, beta1=0.9, beta2=0.999, eps=1e-8)

    def master(state: AdamWState) -> Tensor:
        return (
            state.master if state.remainder is None else join_master(state.master, state.remainder)
        )

    # One rounding of a code moves a moment, and so a step, by a hundredth of itself.
    tolerance = 1e-6 if moments == "fp32" else 5e-3
    torch.testing.assert_close(master(fused), master(plain), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("count", [1, 5000, 70_000])
def test_squared_norm(count: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(0))
    expected = float(x.double().square().sum())
    assert float(squared_norm_launch(x)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("count", [1, 2, 128, 300])
def test_readback(count: int) -> None:
    values = torch.randn(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values[0] = torch.inf
    host = torch.full((count + 1,), 7.0, dtype=torch.float64)
    readback_launch(values, host[:count])
    assert torch.equal(host[:count], values)
    assert host[count] == 7.0


@pytest.mark.parametrize("count", [2, 64, 130, 9000])
def test_nf4(count: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(0))
    packed, scales = quantise_nf4(values)
    plain = dequantise_nf4(packed, scales, (count,), torch.float32)
    out = torch.empty(count)
    dequantise_nf4_launch(packed, scales, out)
    assert torch.equal(out, plain)


@pytest.mark.parametrize("split", [False, True])
def test_adamw_of_many_lanes_gives_the_bits_of_each_lane_alone(split: bool) -> None:
    grads, state = lane_state(split=split)
    expected = moved(state, torch.device("cpu"))
    numbers = lane_numbers()
    lane_adamw_launch(grads, state, torch.tensor(LANES, dtype=torch.int32), numbers)
    for block, lane in enumerate(LANES):
        if lane >= 0:
            beta1, beta2, eps = BETAS[lane]
            start, stop = block * ADAMW_BLOCK, (block + 1) * ADAMW_BLOCK
            adamw_launch(
                grads[start:stop],
                expected.part(start, stop),
                numbers[lane, :4].contiguous(),
                beta1=beta1,
                beta2=beta2,
                eps=eps,
            )
    for ours, theirs in zip(tensors(state), tensors(expected), strict=True):
        assert torch.equal(ours, theirs)


def test_squares_of_blocks() -> None:
    x = torch.randn(3 * ADAMW_BLOCK, generator=torch.Generator().manual_seed(0))
    expected = x.double().view(3, -1).square().sum(1)
    torch.testing.assert_close(block_squares_launch(x).double(), expected, rtol=1e-6, atol=0.0)
