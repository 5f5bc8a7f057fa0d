"""The operations of the tile table: what they are timed with, and the row that comes of it."""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import torch

from slidepack.engine.bench_kernels.measure import Meter
from slidepack.engine.bench_kernels.operation import Setting
from slidepack.engine.tune.candidates import NF4, RMS_NORM_BACKWARD
from slidepack.engine.tune.lora import lora
from slidepack.engine.tune.search import Load, Row, figures, search
from slidepack.kernels import quantise_nf4
from slidepack.kernels.nf4 import dequantise_nf4_launch
from slidepack.kernels.rms_norm import rms_norm_bwd
from slidepack.kernels.tiles import Nf4Tiles, RmsNormBackwardTiles

__all__ = ["OPERATIONS"]


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
        sizes=dataclasses.asdict(found.best.sizes),
        measured=f"{figures(found)}; {tokens} x {width}",
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
        sizes=dataclasses.asdict(found.best.sizes),
        measured=f"{figures(found)}; {shape[0]} x {shape[1]}",
    )


OPERATIONS: Final[dict[str, Callable[[Setting, Meter], Row]]] = {
    "rms_norm_backward": rms_norm_backward,
    "nf4": nf4,
    "lora": lora,
}
"""By their names in the table."""
