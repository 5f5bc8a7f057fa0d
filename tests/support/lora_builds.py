"""The grouped LoRA kernels in the configurations that are shipped."""

from dataclasses import replace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget

from slidepack.kernels.lora.expand import _expand_kernel
from slidepack.kernels.lora.outer import _SUM_BLOCK, _outer_kernel, _outer_sum_kernel
from slidepack.kernels.lora.shrink import (
    _SUM_ROWS,
    SPLIT,
    _shrink_kernel,
    _shrink_sum_kernel,
    shrink_stages,
)
from slidepack.kernels.tiles import LoraTiles
from support.kernel_builds import Build, tile_row

_DROPOUT = {
    "scales_ptr": "*fp32",
    "seeds_ptr": "*i64",
    "thresholds_ptr": "*i64",
    "samples_ptr": "*i32",
    "positions_ptr": "*i32",
    "site": "i32",
}
_TABLES = {"tiles_ptr": "*i32", "offsets_ptr": "*i64"}
_SHRINK = {"x_ptr": "*bf16", "w_ptr": "*bf16", "out_ptr": "*bf16"} | _TABLES | _DROPOUT
_SHRINK |= dict.fromkeys(("plane_stride", "x_stride", "out_stride"), "i32")
_EXPAND = {"s_ptr": "*bf16", "w_ptr": "*bf16", "y_ptr": "*bf16"} | _TABLES | _DROPOUT
_EXPAND |= dict.fromkeys(("s_stride", "y_stride"), "i32")
_OUTER = {"s_ptr": "*bf16", "x_ptr": "*bf16", "grads_ptr": "*fp32", "slots_ptr": "*fp32"}
_OUTER |= _TABLES | _DROPOUT
_OUTER |= dict.fromkeys(("s_stride", "x_stride", "slot_stride", "slot_row"), "i32")


def lora_builds(target: GPUTarget) -> list[Build]:
    """Return the builds for a target, in the sizes that the tile table has for it."""
    sizes = _sizes(target)
    builds = []
    for buckets in (1, 4):
        for dropout in (False, True):
            for even in (False, True):
                builds += _of(sizes, buckets, dropout=dropout, even=even)
    return builds + _sums(sizes)


def lora_builds_in_fp32(target: GPUTarget) -> list[Build]:
    """Return the builds that take the most shared memory."""
    sizes = _sizes(target)
    builds = []
    for build in _of(sizes, 4, dropout=False, even=True):
        wide = {key: kind.replace("bf16", "fp32") for key, kind in build.signature.items()}
        stages = shrink_stages(sizes, torch.float32)
        changed = {"STAGES": stages} if build.kernel is _shrink_kernel else {}
        builds.append(replace(build, signature=wide, constants=build.constants | changed))
    return builds


def _sizes(target: GPUTarget) -> LoraTiles:
    row = tile_row(target, "lora")
    return LoraTiles(**{key: value for key, value in row.items() if key != "measured"})


def _of(sizes: LoraTiles, buckets: int, *, dropout: bool, even: bool) -> list[Build]:
    name = f"{buckets}{'-dropout' * dropout}{'-even' * even}"
    flags: dict[str, Any] = {"BUCKETS": buckets, "EVEN": even, "DROPOUT": dropout}
    # Small ranks that are no multiple of 8 meet even widths.
    flags |= {"RANK8": even and not (dropout and buckets == 1)}
    # Without dropout, each kernel runs scaled one way and unscaled the other.
    flags |= {"SCALED": dropout or even}
    # The largest builds take minutes for all targets.
    slow = buckets == 4 and (dropout or not even)
    shrink = {"BM": sizes.row_tile, "BK": sizes.shrink_columns, "SPLIT": SPLIT}
    expand: dict[str, Any] = {"BM": sizes.row_tile, "BN": sizes.expand_columns}
    expand |= {"SPAN": sizes.expand_span, "LONG": buckets == 4 and not (dropout and even)}
    expand |= {"ADD": not even}
    outer = {"BT": sizes.outer_tokens, "BN": sizes.outer_columns, "ADD": not even}
    stages = (sizes.shrink_stages, sizes.expand_stages, sizes.outer_stages)
    constants = [
        flags | mine | {"STAGES": count}
        for mine, count in zip((shrink, expand, outer), stages, strict=True)
    ]
    planes = _SHRINK if even else _SHRINK | {"out_ptr": "*fp32"}
    kernels = (
        ("shrink", _shrink_kernel, planes, sizes.shrink_warps),
        ("expand", _expand_kernel, _EXPAND, sizes.expand_warps),
        ("outer", _outer_kernel, _OUTER, sizes.outer_warps),
    )
    return [
        # Where the tables are even, the launcher passes multiples of 16, but for the site.
        Build(
            f"lora_{verb}-{name}",
            kernel,
            signature,
            options,
            warps,
            tuple(key for key in signature if key != "site" and even),
            slow,
        )
        for (verb, kernel, signature, warps), options in zip(kernels, constants, strict=True)
    ]


def _sums(sizes: LoraTiles) -> list[Build]:
    planes = {"partial_ptr": "*fp32", "out_ptr": "*bf16", "tiles_ptr": "*i32"}
    planes |= dict.fromkeys(("plane_stride", "out_stride"), "i32")
    slots = {"slots_ptr": "*fp32", "grads_ptr": "*fp32", "sums_ptr": "*i32", "offsets_ptr": "*i64"}
    slots |= dict.fromkeys(("slot_stride", "slot_row"), "i32")
    rows = {"BM": min(_SUM_ROWS, sizes.row_tile), "SPLIT": SPLIT}
    return [
        Build(
            f"lora_shrink_sum-{ranks}",
            _shrink_sum_kernel,
            planes,
            rows | {"R": ranks},
            aligned=tuple(planes),
        )
        for ranks in (16, 128)
    ] + [
        Build(
            f"lora_outer_sum-{add}",
            _outer_sum_kernel,
            slots,
            {"ADD": add, "BLOCK": _SUM_BLOCK},
            aligned=tuple(slots) if add else (),
        )
        for add in (False, True)
    ]
