"""AdamW for many lanes at once is AdamW lane by lane."""

import pytest
import torch
from support.lane_states import BETAS, LANES, lane_numbers, lane_state, moved, tensors

from slidepack.kernels import ADAMW_BLOCK, adamw, block_squares, lane_adamw

CPU = torch.device("cpu")


@pytest.mark.parametrize("split", [False, True])
def test_each_lane_takes_its_own_step(split: bool) -> None:
    grads, state = lane_state(split=split)
    before, expected = moved(state, CPU), moved(state, CPU)
    numbers = lane_numbers()
    lane_adamw(grads, state, torch.tensor(LANES, dtype=torch.int32), numbers)
    for block, lane in enumerate(LANES):
        part = slice(block * ADAMW_BLOCK, (block + 1) * ADAMW_BLOCK)
        if lane < 0:
            for now, then in zip(tensors(state), tensors(before), strict=True):
                assert torch.equal(now[part], then[part])
            continue
        beta1, beta2, eps = BETAS[lane]
        one = expected.part(part.start, part.stop)
        adamw(grads[part], one, numbers[lane, :4], beta1=beta1, beta2=beta2, eps=eps)
        assert not torch.equal(state.master[part], before.master[part])
        torch.testing.assert_close(state.exp_avg[part], one.exp_avg, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(state.exp_avg_sq[part], one.exp_avg_sq, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            state.master[part].float(), one.master.float(), rtol=1e-2, atol=1e-6
        )


def test_squares_of_blocks() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5 * ADAMW_BLOCK, generator=generator)
    expected = x.double().view(5, -1).square().sum(1)
    torch.testing.assert_close(block_squares(x).double(), expected, rtol=1e-6, atol=0.0)
    assert block_squares(torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize("x", [torch.zeros(ADAMW_BLOCK - 1), torch.zeros(2, ADAMW_BLOCK)])
def test_squares_of_what_is_no_row_of_blocks(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="multiple of 1024"):
        block_squares(x)


def test_what_does_not_fit_is_refused() -> None:
    grads, state = lane_state(split=False)
    lanes, numbers = torch.tensor(LANES, dtype=torch.int32), lane_numbers()
    with pytest.raises(ValueError, match="for 7 blocks"):
        lane_adamw(grads, state, lanes[1:], numbers)
    with pytest.raises(ValueError, match="int64"):
        lane_adamw(grads, state, lanes.long(), numbers)
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        lane_adamw(grads, state, lanes, numbers[:, :4])
    half = moved(state, CPU)
    half = type(half)(half.master, None, half.exp_avg.bfloat16(), half.exp_avg_sq.bfloat16())
    with pytest.raises(ValueError, match="not fp32"):
        lane_adamw(grads, half, lanes, numbers)
