"""Tile tables that are filled up: their sizes follow from the adapters and the tokens alone."""

from random import Random

import pytest
import torch

from slidepack.kernels import LoraLayout, LoraTables, lora_tables, padded_tables
from slidepack.kernels.lora.tables import Side
from slidepack.kernels.tiles import LoraTiles

CPU = torch.device("cpu")


def _bounds(random: Random, adapters: int, tokens: int) -> tuple[int, ...]:
    cuts = sorted(random.randint(0, tokens) for _ in range(adapters - 1))
    return (0, *cuts, tokens)


def _shapes(tables: LoraTables) -> list[tuple[int, ...]]:
    sides: tuple[Side, ...] = (tables.input_side, tables.output_side)
    shapes: list[tuple[int, ...]] = []
    for side in sides:
        for tiles in (side.shrink, side.expand, side.outer):
            assert tiles.device.shape[0] == len(tiles.host)
            shapes.append(tuple(tiles.device.shape))
        shapes.append((*side.reduction.device.shape, side.reduction.num_slots))
    return shapes


@pytest.mark.parametrize("seed", range(30))
def test_rows_of_as_many_tokens_have_tables_of_the_same_sizes(seed: int) -> None:
    random = Random(seed)
    adapters, tokens = random.randint(1, 9), random.choice([1, 40, 640, 2048, 2049, 9000])
    parts = random.randint(1, 3)
    layout = LoraLayout(
        in_width=64,
        part_widths=(32,) * parts,
        ranks=tuple(
            tuple(random.choice([0, 1, 8, 128, 300]) for _ in range(parts)) for _ in range(adapters)
        ),
    )
    sizes = LoraTiles.of(CPU)
    cases = [
        lora_tables(layout, _bounds(random, adapters, tokens), CPU, sizes=sizes) for _ in range(6)
    ]
    # All tokens with one adapter, and each with as many as the others.
    cases += [
        lora_tables(layout, (0,) * (1 + lane) + (tokens,) * (adapters - lane), CPU, sizes=sizes)
        for lane in range(adapters)
    ]
    shapes = [_shapes(padded_tables(tables)) for tables in cases]
    assert all(shape == shapes[0] for shape in shapes)
    for tables in cases:
        padded = padded_tables(tables)
        for side, longer in (
            (tables.input_side, padded.input_side),
            (tables.output_side, padded.output_side),
        ):
            assert longer.reduction.num_slots >= side.reduction.num_slots
            for tiles, more in (
                (side.shrink, longer.shrink),
                (side.expand, longer.expand),
                (side.outer, longer.outer),
            ):
                count = len(tiles.host)
                assert torch.equal(more.device[:count], tiles.device)
                assert not more.device[count:].any()


def test_tables_on_a_device_are_refused() -> None:
    layout = LoraLayout(in_width=16, part_widths=(16,), ranks=((2,),))
    tables = lora_tables(layout, (0, 3), torch.device("meta"), sizes=LoraTiles.of(CPU))
    with pytest.raises(ValueError, match="on meta"):
        padded_tables(tables)
