"""The same cases at the sizes of an 8B model, in bf16, on a real card."""

import pytest
import torch
from support.head_loss import torch_head_loss
from support.kernel_cases import Case, cases, judge
from support.lane_states import BETAS, LANES, lane_numbers, lane_state, moved, tensors

from slidepack.kernels import (
    ADAMW_BLOCK,
    AdamWState,
    adamw,
    adamw_scalars,
    dequantise_nf4,
    join_master,
    lane_adamw,
    linear_cross_entropy,
    quantise_nf4,
    split_master,
    squared_norm,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
GPU = torch.device("cuda:0")


@pytest.mark.parametrize("case", cases(large=True), ids=lambda case: case.name)
def test_bf16_within_the_error_budget(case: Case) -> None:
    judge(case, torch.bfloat16, "cuda:0")


@pytest.mark.parametrize("case", cases(large=False), ids=lambda case: case.name)
def test_fp32_within_the_error_budget(case: Case) -> None:
    judge(case, torch.float32, "cuda:0")


@pytest.mark.parametrize("soft_cap", [None, 20.0])
@pytest.mark.parametrize(("tokens", "vocab"), [(3000, 128256), (65, 49152)])
def test_linear_cross_entropy(tokens: int, vocab: int, soft_cap: float | None) -> None:
    generator = torch.Generator(GPU).manual_seed(0)
    hidden = torch.randn(tokens, 256, device=GPU, generator=generator).bfloat16()
    head = (torch.randn(vocab, 256, device=GPU, generator=generator) * 0.1).bfloat16()
    labels = torch.randint(0, vocab, (tokens,), device=GPU, generator=generator)
    labels[::5] = -100
    weights = torch.rand(tokens, device=GPU, generator=generator)

    truth, plain = (
        torch_head_loss(hidden, head, labels, weights, soft_cap, kind)
        for kind in (torch.float64, torch.bfloat16)
    )
    ours = linear_cross_entropy(
        hidden, head, labels, weights_S=weights, soft_cap=soft_cap, head_grad=True
    )
    for t, p, o in zip(truth, plain, ours, strict=True):
        assert o is not None
        budget = (t - p).abs().max() + 2**-7 * t.abs().max()
        assert (t - o.double()).abs().max() <= budget
    assert ours.head_grad is not None
    assert ours.head_grad.dtype == torch.float32
    again = linear_cross_entropy(hidden, head, labels, weights_S=weights, soft_cap=soft_cap)
    assert again.hidden_grad is not None
    assert ours.hidden_grad is not None
    assert torch.equal(again.hidden_grad, ours.hidden_grad)


@pytest.mark.parametrize("gradient", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("moments", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_adamw_equals_the_cpu(moments: torch.dtype, gradient: torch.dtype) -> None:
    count = 300_001
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(count, generator=generator)

    def state(device: str) -> AdamWState:
        plane, remainder = split_master(start.to(device))
        if moments == torch.int8:
            scales = torch.zeros(-(-count // 1024), device=device)
            return AdamWState(
                plane,
                remainder,
                torch.zeros(count, dtype=torch.int8, device=device),
                torch.zeros(count, dtype=torch.uint8, device=device),
                scales,
                scales.clone(),
            )
        zeros = torch.zeros(count, dtype=moments, device=device)
        return AdamWState(plane, remainder, zeros, zeros.clone())

    host, card = state("cpu"), state("cuda:0")
    for step in range(1, 6):
        grad = torch.randn(count, generator=generator).to(gradient)
        for where, device in ((host, "cpu"), (card, "cuda:0")):
            scalars = adamw_scalars(
                torch.tensor(step, device=device),
                torch.tensor(0.5, device=device),
                lr=1e-2,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.1,
            )
            adamw(grad.to(device), where, scalars, beta1=0.9, beta2=0.999, eps=1e-8)
    assert host.remainder is not None
    assert card.remainder is not None
    expected = join_master(host.master, host.remainder)
    found = join_master(card.master, card.remainder).cpu()
    # One rounding of a stored moment moves a step by as much as the moment's own precision.
    tolerance = 1e-6 if moments == torch.float32 else 1e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_squared_norm_and_nf4_equal_the_cpu() -> None:
    x = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
    expected = float(x.double().square().sum())
    assert float(squared_norm(x.cuda())) == pytest.approx(expected, rel=1e-6)
    assert torch.equal(squared_norm(x.cuda()), squared_norm(x.cuda()))
    values = x[:1_000_000]
    packed, scales = quantise_nf4(values.cuda())
    plain, plain_scales = quantise_nf4(values)
    assert torch.equal(packed.cpu(), plain)
    assert torch.equal(scales.cpu(), plain_scales)
    for dtype in (torch.float32, torch.bfloat16):
        back = dequantise_nf4(packed, scales, (1000, 1000), dtype)
        assert torch.equal(back.cpu(), dequantise_nf4(plain, plain_scales, (1000, 1000), dtype))


@pytest.mark.parametrize("split", [False, True])
def test_adamw_of_many_lanes_gives_the_bits_of_each_lane_alone(split: bool) -> None:
    grads, state = lane_state(split=split)
    ours, theirs = moved(state, GPU), moved(state, GPU)
    numbers = lane_numbers().to(GPU)
    lane_adamw(grads.to(GPU), ours, torch.tensor(LANES, dtype=torch.int32, device=GPU), numbers)
    for block, lane in enumerate(LANES):
        if lane >= 0:
            beta1, beta2, eps = BETAS[lane]
            start, stop = block * ADAMW_BLOCK, (block + 1) * ADAMW_BLOCK
            one, part = theirs.part(start, stop), grads[start:stop].to(GPU)
            adamw(part, one, numbers[lane, :4].contiguous(), beta1=beta1, beta2=beta2, eps=eps)
    for mine, its in zip(tensors(ours), tensors(theirs), strict=True):
        assert torch.equal(mine, its)
