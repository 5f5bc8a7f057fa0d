"""The grouped LoRA kernels in fp32, against fp64 and their own solo runs."""

from dataclasses import replace

import pytest
import torch
from support.lora_cases import CPU, LoraCase, draw
from support.lora_judges import assert_equal, drop_ones, judge_lora, kept_of
from support.lora_small import CASES, LONG, PACK, WIDE, small_case

from slidepack.kernels.lora.expand import expand_launch
from slidepack.kernels.lora.padding import padded_tables
from slidepack.kernels.lora.tables import Side, Tiles

F32 = torch.float32


@pytest.mark.parametrize("case", [*CASES, *WIDE, LONG], ids=lambda case: case.name)
def test_within_the_error_budget(case: LoraCase) -> None:
    judge_lora(case, F32, CPU)


@pytest.mark.parametrize("case", [PACK, LONG], ids=lambda case: case.name)
def test_gradients_are_added_or_overwritten(case: LoraCase) -> None:
    row = draw(replace(case, dropout=False)).row(F32)
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
    case = replace(LONG, base=False, dropout=False, lanes=(LONG.lanes[1], LONG.lanes[0]))
    packed = draw(case).row(F32).run(fused=True)
    assert_equal([packed[1]], draw(case.alone(1)).row(F32).run(fused=True))


@pytest.mark.parametrize("site", [1, 2**31 - 1])
@pytest.mark.parametrize("width", [48, 27])
def test_the_kernels_drop_what_the_plain_mask_drops(width: int, site: int) -> None:
    lanes = (((1,), 18), ((1,), 5), ((1,), 3))
    row = draw(replace(small_case("", width, (4,), *lanes, dropout=True), site=site)).row(F32)
    kept = kept_of(row)
    for found, true in zip(drop_ones(row, fused=True), kept, strict=True):
        assert torch.equal(found, true)


@pytest.mark.parametrize("case", [*CASES, *WIDE, LONG], ids=lambda case: case.name)
def test_tiles_that_only_fill_up_change_no_bit(case: LoraCase) -> None:
    row = draw(case).row(F32)
    plain = row.run(fused=True)
    tables = padded_tables(row.tables)
    longer = replace(
        tables, input_side=_longer(tables.input_side), output_side=_longer(tables.output_side)
    )
    padded = replace(row, tables=longer)
    row.weights.grads.fill_(float("nan"))
    assert_equal(padded.run(fused=True), plain)
    assert row.padding().isnan().all()


def _longer(side: Side) -> Side:
    """Return the tables with two tiles more, which a tight fit would not have."""

    def more(tiles: Tiles) -> Tiles:
        zeros = tiles.device.new_zeros((2, tiles.device.shape[1]))
        host = (*tiles.host, *(tuple(row) for row in zeros.tolist()))
        return replace(tiles, host=host, device=torch.cat([tiles.device, zeros]))

    return replace(side, shrink=more(side.shrink), expand=more(side.expand), outer=more(side.outer))
