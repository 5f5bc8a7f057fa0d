"""The operations of the tile table: what they are timed with, and the row that comes of it."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from slidepack.engine.bench_kernels.lora import LoraCase, LoraShape, lora_case
from slidepack.engine.bench_kernels.measure import Meter
from slidepack.engine.bench_kernels.operation import Setting
from slidepack.engine.tune.candidates import (
    NF4,
    RMS_NORM_BACKWARD,
    expand_candidates,
    outer_candidates,
    shrink_candidates,
)
from slidepack.engine.tune.search import Load, Scored, Search, search
from slidepack.kernels import LoraTables, lora_tables, quantise_nf4
from slidepack.kernels.lora.expand import expand_launch
from slidepack.kernels.lora.layout import RANK_CHUNK
from slidepack.kernels.lora.outer import outer_launch
from slidepack.kernels.lora.shrink import shrink_launch
from slidepack.kernels.nf4 import dequantise_nf4_launch
from slidepack.kernels.rms_norm import rms_norm_bwd
from slidepack.kernels.tiles import LoraTiles, Nf4Tiles, RmsNormBackwardTiles

__all__ = ["OPERATIONS", "Row"]

_LORA_TOKENS: Final = 4096
_LORA_LONG: Final = 16384
_LONG_WEIGHT: Final = 1.0 / 3.0
"""Four times the tokens, in about three times the time of a card that the short row fills."""

LoraMake = Callable[[LoraCase, LoraTables], Callable[[], Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row of the tile table."""

    sizes: dict[str, int]
    measured: str
    """What chose the sizes, without the machine."""


def rms_norm_backward(setting: Setting, meter: Meter) -> Row:
    """Time the norm's backward pass with its weight's gradient."""
    tokens, width = setting.sizes.tokens, setting.sizes.width
    dy, total = setting.random(tokens, width), setting.random(tokens, width)
    weight = setting.random(width)
    scale = torch.ones(tokens, dtype=torch.float32, device=setting.device)

    def bind(tiles: RmsNormBackwardTiles) -> Callable[[], Any]:
        return lambda: rms_norm_bwd(
            dy, total, weight, scale, None, weight_grad=True, plus_one=False, tiles=tiles
        )

    found = search(RMS_NORM_BACKWARD, [Load(weight=1.0, bind=bind)], meter)
    return Row(
        sizes=dataclasses.asdict(found.scored[0].sizes),
        measured=f"{_figures(found)}; {tokens} x {width}",
    )


def nf4(setting: Setting, meter: Meter) -> Row:
    """Time the 4-bit look-up of one frozen weight."""
    shape = (setting.sizes.ffn, setting.sizes.width)
    packed, scales = quantise_nf4(setting.random(*shape))
    out = torch.empty(shape, dtype=setting.dtype, device=setting.device)

    def bind(tiles: Nf4Tiles) -> Callable[[], Any]:
        return lambda: dequantise_nf4_launch(packed, scales, out, tiles=tiles)

    found = search(NF4, [Load(weight=1.0, bind=bind)], meter)
    return Row(
        sizes=dataclasses.asdict(found.scored[0].sizes),
        measured=f"{_figures(found)}; {shape[0]} x {shape[1]}",
    )


def lora(setting: Setting, meter: Meter) -> Row:
    """Time the grouped kernels, one after the other, on a short and a long row.

    Shrink and expand share the tokens of a tile, so the best pair is taken that agrees on them.
    """
    width = setting.sizes.width
    present = LoraTiles.of(setting.device)
    shapes = [
        LoraShape(tokens=tokens, in_width=width, out_width=width)
        for tokens in (_LORA_TOKENS, _LORA_LONG)
    ]
    cases = [lora_case(setting, shape, tiles=present) for shape in shapes]
    shrink = search(shrink_candidates(present), _loads(cases, _shrink(setting)), meter)
    expand = search(expand_candidates(present), _loads(cases, _expand(setting)), meter)
    outer = search(outer_candidates(present), _loads(cases, _outer(setting)), meter)
    best_shrink, best_expand = best_pair(shrink, expand)
    chosen = merged(best_shrink.sizes, best_expand.sizes, outer.scored[0].sizes)
    return Row(
        sizes=dataclasses.asdict(chosen),
        measured=(
            f"shrink {_figures(shrink, best_shrink)}, expand {_figures(expand, best_expand)}, "
            f"gradient {_figures(outer)}; {shapes[0].adapters} adapters of rank 8-128, "
            f"{_LORA_TOKENS} tokens ({_LORA_LONG} count a third), {width} x {width}"
        ),
    )


OPERATIONS: Final[dict[str, Callable[[Setting, Meter], Row]]] = {
    "rms_norm_backward": rms_norm_backward,
    "nf4": nf4,
    "lora": lora,
}
"""By their names in the table."""


def best_pair(
    shrink: Search[LoraTiles], expand: Search[LoraTiles]
) -> tuple[Scored[LoraTiles], Scored[LoraTiles]]:
    """Return the shrink and the expand that are the fastest together, of one row tile.

    Raises:
        RuntimeError: no two that run have one.
    """
    pairs = [
        (one, other)
        for one in shrink.scored
        for other in expand.scored
        if one.sizes.row_tile == other.sizes.row_tile
    ]
    if not pairs:
        raise RuntimeError("No shrink and expand of one row tile run on this GPU.")
    return min(pairs, key=lambda pair: pair[0].score + pair[1].score)


def merged(shrink: LoraTiles, expand: LoraTiles, outer: LoraTiles) -> LoraTiles:
    """Return the sizes that take each kernel's own from where they were found."""
    sources = {"row": shrink, "shrink": shrink, "expand": expand, "outer": outer}
    return LoraTiles(
        **{
            field.name: getattr(sources[field.name.partition("_")[0]], field.name)
            for field in dataclasses.fields(LoraTiles)
        }
    )


def _loads(cases: Sequence[LoraCase], make: LoraMake) -> list[Load[LoraTiles]]:
    def load(case: LoraCase, weight: float) -> Load[LoraTiles]:
        old = case.tables

        def bind(tiles: LoraTiles) -> Callable[[], Any]:
            return make(case, lora_tables(old.layout, old.bounds, case.dy.device, sizes=tiles))

        return Load(weight=weight, bind=bind)

    return [
        load(case, weight) for case, weight in zip(cases, (1.0, _LONG_WEIGHT), strict=True)
    ]


def _shrink(setting: Setting) -> LoraMake:
    def make(case: LoraCase, tables: LoraTables) -> Callable[[], Any]:
        return lambda: shrink_launch(case.x, case.weights, tables, tables.input_side)

    return make
