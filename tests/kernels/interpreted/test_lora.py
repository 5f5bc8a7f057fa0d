"""The grouped LoRA kernels in fp32, against fp64 and their own solo runs."""

from dataclasses import replace

import pytest
import torch
from support.lora_cases import CPU, SMALL_TILES, Lane, LoraCase, draw
from support.lora_judges import assert_equal, drop_ones, judge_lora

from slidepack.kernels.lora.dropout import keep_mask
from slidepack.kernels.lora.expand import expand_launch
from slidepack.kernels.lora.tables import TOKEN_CHUNK

F32 = torch.float32


def _case(
    name: str,
    in_width: int,
    parts: tuple[int, ...],
    *lanes: tuple[tuple[int, ...], int],
    dropout: bool = False,
) -> LoraCase:
    rates = (0.3, 0.0, 0.5)
    return LoraCase(
        name=name,
        in_width=in_width,
        part_widths=parts,
        lanes=tuple(
            Lane(key=key, ranks=ranks, tokens=tokens, rate=rates[key % 3])
            for key, (ranks, tokens) in enumerate(lanes)
        ),
        dropout=dropout,
        sizes=SMALL_TILES,
    )


SOLO = [(8, 8), (0, 3), (24, 1)]
CASES = [
    _case("odd-widths", 21, (37,), ((1,), 5), ((3,), 0), ((24,), 17), ((16,), 1)),
    _case("odd-widths-dropout", 21, (37,), ((1,), 5), ((3,), 1), ((24,), 17), dropout=True),
    _case("even", 48, (32, 16), ((8, 16), 33), ((16, 0), 1), ((8, 8), 0)),
    _case("even-dropout", 48, (32, 16), ((8, 16), 33), ((16, 0), 1), ((0, 8), 6), dropout=True),
    _case("large-ranks", 32, (20,), ((130,), 6), ((2,), 3), ((300,), 1)),
    _case("large-ranks-dropout", 18, (16, 5), ((128, 3), 4), ((1, 200), 7), dropout=True),
    _case("nobody-is-targeted", 16, (16, 16), ((0, 0), 3), ((0, 1), 2), ((0, 0), 0)),
]
WIDE = replace(
    _case("two-stretches", 4100, (4099, 6), ((3, 2), 5), ((1, 1), 2), dropout=True),
    sizes=replace(SMALL_TILES, shrink_columns=512, expand_columns=1024, expand_span=2048),
)
LONG = replace(
    _case("token-chunks", 17, (16, 2), ((3, 1), TOKEN_CHUNK + 77), ((0, 2), 4), dropout=True),
    sizes=replace(SMALL_TILES, row_tile=128, outer_tokens=128),
)
PACK = _case(
    "pack", 36, (24, 16), ((8, 8), 21), ((0, 3), 9), ((24, 130), 5), ((1, 1), 1), dropout=True
)


@pytest.mark.parametrize("case", [*CASES, WIDE, LONG], ids=lambda case: case.name)
def test_within_the_error_budget(case: LoraCase) -> None:
    judge_lora(replace(case, sizes=replace(case.sizes or SMALL_TILES, outer_columns=32)), F32, CPU)


@pytest.mark.parametrize("case", [PACK, LONG], ids=lambda case: case.name)
def test_gradients_are_added_or_overwritten(case: LoraCase) -> None:
    row = draw(case).row(F32)
    once = row.run(fused=True)
    assert_equal(row.run(fused=True), once)
    twice = row.run(fused=True, add=True)
    for ours, theirs in zip(twice, once, strict=True):
        for name in ours.keys() - {"y", "dx"}:
            assert torch.equal(ours[name], 2 * theirs[name])
    assert row.padding().isnan().all()


def test_an_expansion_may_be_added() -> None:
    row = draw(PACK).row(F32)
    s = torch.randn(36, row.tables.layout.s_columns, generator=torch.Generator().manual_seed(0))
    outputs = [torch.full((36, 40), float("nan")), torch.ones(36, 40)]
    for y, add in zip(outputs, (False, True), strict=True):
        expand_launch(s, row.weights, row.tables, row.tables.output_side, y, add=add)
    assert torch.equal(outputs[0] + 1.0, outputs[1])


@pytest.mark.parametrize("dropout", [False, True])
def test_a_lane_in_a_pack_is_the_lane_alone(dropout: bool) -> None:
    case = replace(PACK, base=False, dropout=dropout)
    packed = draw(case).row(F32).run(fused=True)
    for index in range(len(case.lanes)):
        assert_equal([packed[index]], draw(case.alone(index)).row(F32).run(fused=True))


def test_a_long_lane_in_a_pack_is_the_lane_alone() -> None:
    case = replace(LONG, base=False, lanes=(LONG.lanes[1], LONG.lanes[0]))
    packed = draw(case).row(F32).run(fused=True)
    assert_equal([packed[1]], draw(case.alone(1)).row(F32).run(fused=True))


@pytest.mark.parametrize("width", [48, 27])
def test_the_kernels_drop_what_the_plain_mask_drops(width: int) -> None:
    lanes = (((1,), 18), ((1,), 5), ((1,), 3))
    case = replace(_case("", width, (4,), *lanes, dropout=True), site=2**31 - 1)
    row = draw(case).row(F32)
    assert row.dropout is not None
    kept = torch.cat(
        [keep_mask(row.dropout, i, row.tables.rows(i), case.site, width) for i in range(3)]
    ).float()
    mask, by_token, by_feature = drop_ones(row, fused=True)
    assert torch.equal(mask, kept)
    assert torch.equal(by_token, kept.sum(dim=1))
    sums = [kept[row.tables.rows(i)].sum(dim=0) for i in range(3)]
    assert torch.equal(by_feature, torch.stack(sums))
