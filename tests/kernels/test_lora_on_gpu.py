"""The grouped LoRA kernels on a real card, at the sizes of an 8B model."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from support.lora_cases import Lane, LoraCase, draw
from support.lora_judges import assert_equal, drop_ones, judge_lora, kept_of
from support.lora_small import CASES, LONG, SMALL_TILES, WIDE

from slidepack.kernels import lora_linear

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
GPU = torch.device("cuda:0")
BF16, F32 = torch.bfloat16, torch.float32
LENGTHS = (2100, 0, 1, 63, 64, 65, 16, 17, *(66 + index for index in range(22)), 1, 86)
"""Of 32 lanes, 4,096 tokens; the first is longer than a token chunk."""
RATES = (0.1, 0.0, 0.5)


def _pack(
    name: str,
    parts: tuple[int, ...],
    ranks: Sequence[tuple[int, ...]],
    *,
    in_width: int = 4096,
    dropout: bool = False,
) -> LoraCase:
    """Return 32 lanes that take the ranks in turn; every third has no dropout."""
    return LoraCase(
        name=name,
        in_width=in_width,
        part_widths=parts,
        lanes=tuple(
            Lane(key=key, ranks=ranks[key % len(ranks)], tokens=length, rate=RATES[key % 3])
            for key, length in enumerate(LENGTHS)
        ),
        dropout=dropout,
    )


Q_K_V = (4096, 1024, 1024)
MIXED = [(rank,) for rank in (8, 128, 16, 64, 32)]
TARGETS = [(16, 16, 16), (128, 0, 128), (8, 0, 0), (0, 64, 8), (0, 0, 0), (3, 1, 24), (32, 32, 0)]
PACKS = [
    _pack("mixed", (4096,), MIXED),
    _pack("mixed-dropout", (4096,), MIXED, dropout=True),
    _pack("not-of-8", (4096,), [(1,), (3,), (24,)], dropout=True),
    _pack("q-k-v", Q_K_V, TARGETS),
    _pack("q-k-v-dropout", Q_K_V, TARGETS, dropout=True),
    _pack("large-ranks", (2048,), [(256,), (130,), (300,)], in_width=2048),
    _pack("two-stretches", (6144,), [(16,), (128,)], in_width=14336),
    _pack("odd-widths", (1000, 77), [(8, 8), (3, 128)], in_width=1021, dropout=True),
]
MIXED_DROPOUT, QKV_DROPOUT = PACKS[1], PACKS[4]


def test_the_lengths_are_those_of_a_full_row() -> None:
    assert len(LENGTHS) == 32
    assert sum(LENGTHS) == 4096


@pytest.mark.parametrize("case", PACKS, ids=lambda case: case.name)
def test_bf16_within_the_error_budget(case: LoraCase) -> None:
    judge_lora(case, BF16, GPU)


@pytest.mark.parametrize("case", [*CASES, *WIDE, LONG], ids=lambda case: case.name)
def test_fp32_within_the_error_budget(case: LoraCase) -> None:
    judge_lora(replace(case, sizes=SMALL_TILES), F32, GPU)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_small_cases_in_the_sizes_of_the_card(case: LoraCase, dtype: torch.dtype) -> None:
    judge_lora(replace(case, sizes=None), dtype, GPU)


def test_ranks_of_128_fit_the_card_in_fp32() -> None:
    lanes = (Lane(key=0, ranks=(128,), tokens=70), Lane(key=1, ranks=(256,), tokens=9))
    case = LoraCase(name="fp32", in_width=512, part_widths=(256,), lanes=lanes)
    judge_lora(case, F32, GPU)


@pytest.mark.parametrize("case", [MIXED_DROPOUT, QKV_DROPOUT], ids=lambda case: case.name)
def test_a_lane_in_a_pack_is_the_lane_alone(case: LoraCase) -> None:
    without_base = replace(case, base=False)
    packed = draw(without_base).row(BF16, GPU).run(fused=True)
    # The long one, none, one token, and every rank.
    for index in (0, 1, 2, 3, 4, 5, 6, 19, 31):
        alone = draw(without_base.alone(index)).row(BF16, GPU).run(fused=True)
        assert_equal([packed[index]], alone)


def test_the_order_of_lanes_changes_nothing() -> None:
    case = replace(MIXED_DROPOUT, base=False)
    turned = replace(case, lanes=tuple(reversed(case.lanes)))
    forward, backward = (draw(one).row(BF16, GPU).run(fused=True) for one in (case, turned))
    assert_equal(forward, backward[::-1])


@pytest.mark.parametrize("case", [MIXED_DROPOUT, QKV_DROPOUT], ids=lambda case: case.name)
def test_a_side_stream_and_a_second_run_change_no_bit(case: LoraCase) -> None:
    drawing = draw(case)
    plain = drawing.row(BF16, GPU)
    expected = plain.run(fused=True)
    assert_equal(plain.run(fused=True), expected)
    beside = drawing.row(BF16, GPU, side_stream=torch.cuda.Stream(GPU))
    for _ in range(3):
        assert_equal(beside.run(fused=True), expected)


def test_the_public_function_runs_the_kernels() -> None:
    row = draw(MIXED_DROPOUT).row(BF16, GPU)
    expected = row.run(fused=True)
    row.weights.grads.fill_(float("nan"))
    x = row.x.clone().requires_grad_()
    y = lora_linear(x, row.weight, row.tables, row.weights, dropout=row.dropout, site=row.case.site)
    y.backward(row.dy)
    assert x.grad is not None
    assert_equal(row.split(y.detach(), x.grad), expected)


@pytest.mark.parametrize("case", [PACKS[0], LONG], ids=lambda case: case.name)
def test_gradients_are_added_or_overwritten(case: LoraCase) -> None:
    row = draw(case).row(BF16, GPU)
    once = row.run(fused=True)
    assert_equal(row.run(fused=True), once)
    twice = row.run(fused=True, add=True)
    for ours, theirs in zip(twice, once, strict=True):
        for name in ours.keys() - {"y", "dx"}:
            assert torch.equal(ours[name], 2 * theirs[name])
    assert row.padding().isnan().all()


# 1 and multiples of 16 are what Triton treats apart.
@pytest.mark.parametrize("site", [0, 1, 16, 2**31 - 1])
def test_the_kernels_drop_what_a_cpu_drops(site: int) -> None:
    pack = replace(_pack("", (64,), [(1,)], dropout=True), site=site)
    drawing = draw(pack)
    found = drop_ones(drawing.row(F32, GPU), fused=True)
    # Ones: every sum is an integer below 2^24, exact in fp32.
    for ours, on_gpu, on_cpu in zip(
        found, kept_of(drawing.row(F32, GPU)), kept_of(drawing.row(F32)), strict=True
    ):
        assert torch.equal(ours, on_gpu)
        assert torch.equal(ours.cpu(), on_cpu)


def test_small_tiles_give_the_same_mask() -> None:
    pack = _pack("", (64,), [(1,)], in_width=200, dropout=True)
    own, small = (
        drop_ones(draw(replace(pack, sizes=sizes)).row(F32, GPU), fused=True)
        for sizes in (None, SMALL_TILES)
    )
    assert all(torch.equal(a, b) for a, b in zip(own, small, strict=True))
