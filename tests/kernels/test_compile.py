"""Every kernel, in every configuration that is shipped, compiled for cards that are not here.

A target for which the installed Triton cannot build even a trivial kernel is skipped by name; an
error of one of ours is a failure.
"""

from collections.abc import Callable
from typing import Any

import pytest
from support.kernel_builds import (
    ALIKE,
    QUICK,
    TARGETS,
    Build,
    add_one,
    compile_or_skip,
    promised_bytes,
    refuse,
    shared_bytes,
    tile_row,
    trivial,
    why_unbuildable,
)
from support.lora_builds import lora_builds, lora_builds_in_fp32
from triton.backends.compiler import GPUTarget
from triton.compiler import CompilationError

from slidepack.kernels.adamw import ADAMW_BLOCK, _adamw_kernel, _squared_norm_kernel
from slidepack.kernels.gated import _gated_bwd_kernel, _gated_fwd_kernel
from slidepack.kernels.lane_adamw import NUMBERS, _block_squares_kernel, _lane_adamw_kernel
from slidepack.kernels.linear_cross_entropy import _cross_entropy_kernel
from slidepack.kernels.lora.expand import _expand_kernel
from slidepack.kernels.lora.outer import _outer_kernel
from slidepack.kernels.lora.shrink import _shrink_kernel
from slidepack.kernels.nf4 import _LEVELS, NF4_BLOCK, _dequantise_nf4_kernel
from slidepack.kernels.readback import _BLOCK, _readback_kernel
from slidepack.kernels.rms_norm import (
    _NARROW_BLOCK,
    _SUM_COLUMNS,
    _SUM_ROWS,
    _rms_norm_bwd_kernel,
    _rms_norm_fwd_kernel,
    _rms_norm_sum_kernel,
)
from slidepack.kernels.rope import _rope_kernel


def _norms(target: GPUTarget) -> list[Build]:
    pointers = dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "sum_ptr", "y_ptr"), "*bf16")
    forward = pointers | {"scale_ptr": "*fp32", "width": "i32", "eps": "fp32"}
    backward = dict.fromkeys(("dy_ptr", "x_ptr", "weight_ptr"), "*bf16") | {
        "scale_ptr": "*fp32",
        "dsum_ptr": "*bf16",
        "dx_ptr": "*bf16",
        "partial_ptr": "*fp32",
        "rows": "i32",
        "width": "i32",
    }
    row = tile_row(target, "rms_norm_backward")
    sums = {"partial_ptr": "*fp32", "out_ptr": "*bf16", "count": "i32", "width": "i32"}
    options: dict[str, Any] = {"ROWS": _SUM_ROWS, "BLOCK": _SUM_COLUMNS}
    builds = [Build("rms_norm_sum", _rms_norm_sum_kernel, sums, options, 8)]
    for block, warps in ((1024, 4), (4096, 8), (16384, 16)):
        for plus_one, residual in ((False, False), (True, True)):
            options = {"PLUS_ONE": plus_one, "BLOCK": block}
            name = f"{block}-{plus_one}-{residual}"
            # A backward pass without a weight gradient has the sizes of an element-wise kernel.
            stages = 1 if residual else row["stages"]
            bwd_warps = row["warps"] if block <= _NARROW_BLOCK and not residual else warps
            builds += [
                Build(
                    f"rms_norm_fwd-{name}",
                    _rms_norm_fwd_kernel,
                    forward,
                    options | {"HAS_RESIDUAL": residual},
                    warps,
                ),
                Build(
                    f"rms_norm_bwd-{name}",
                    _rms_norm_bwd_kernel,
                    backward,
                    options | {"HAS_DSUM": residual, "WEIGHT_GRAD": not residual, "STAGES": stages},
                    bwd_warps,
                ),
            ]
    return builds


def _elementwise(_target: GPUTarget) -> list[Build]:
    strides = dict.fromkeys(("gate_stride", "up_stride"), "i32")
    bf16 = "*bf16"
    builds = []
    for gelu in (False, True):
        options = {"GELU": gelu, "BLOCK": 2048}
        forward = {"gate_ptr": bf16, "up_ptr": bf16, "y_ptr": bf16} | strides | {"width": "i32"}
        backward = dict.fromkeys(("dy_ptr", "gate_ptr", "up_ptr", "dgate_ptr", "dup_ptr"), bf16)
        backward |= strides | {"out_stride": "i32", "width": "i32"}
        builds += [
            Build(f"gated_fwd-{gelu}", _gated_fwd_kernel, forward, options, 8),
            Build(f"gated_bwd-{gelu}", _gated_bwd_kernel, backward, options, 8),
        ]
    rope_signature = dict.fromkeys(
        ("q_ptr", "k_ptr", "q_out_ptr", "k_out_ptr", "cos_ptr", "sin_ptr"), bf16
    ) | dict.fromkeys(
        ("q_stride", "k_stride", "q_out_stride", "k_out_stride", "table_stride"), "i32"
    )
    rope_signature |= {"q_heads": "i32", "k_heads": "i32"}
    for head, half, rest in ((128, 64, 0), (64, 16, 32)):
        layout: dict[str, Any] = {
            "SIGN": 1.0,
            "HEAD": head,
            "HALF": half,
            "BLOCK_Q": 32,
            "BLOCK_K": 8,
            "BLOCK_HALF": half,
            "BLOCK_REST": rest,
        }
        builds.append(Build(f"rope-{head}-{half}", _rope_kernel, rope_signature, layout))
    return builds


def _rest(target: GPUTarget) -> list[Build]:
    loss = {
        "logits_ptr": "*bf16",
        "labels_ptr": "*i64",
        "weights_ptr": "*fp32",
        "losses_ptr": "*fp32",
        "row_stride": "i32",
        "vocab": "i32",
        "soft_cap": "fp32",
    }
    builds = [
        Build(
            f"cross_entropy-{capped}-{backward}",
            _cross_entropy_kernel,
            loss,
            {"SOFT_CAP": capped, "BACKWARD": backward, "BLOCK": 8192},
            16,
        )
        for capped in (False, True)
        for backward in (False, True)
    ]
    for gradient in ("*bf16", "*fp32"):
        for split, moment in ((False, "*fp32"), (True, "*bf16"), (True, "*i8")):
            signature = {
                "grad_ptr": gradient,
                "master_ptr": "*bf16" if split else "*fp32",
                "remainder_ptr": "*i16",
                "m_ptr": moment,
                "v_ptr": "*u8" if moment == "*i8" else moment,
                "m_scale_ptr": "*fp32",
                "v_scale_ptr": "*fp32",
                "scalars_ptr": "*fp32",
                "elements": "i32",
                "decayed": "i32",
            } | dict.fromkeys(("one_minus_beta1", "beta2", "one_minus_beta2", "eps"), "fp32")
            options: dict[str, Any] = {"SPLIT": split, "BLOCK": ADAMW_BLOCK}
            options |= {"INT8": moment == "*i8"}
            name = f"adamw-{gradient}-{split}-{moment}"
            builds.append(Build(name, _adamw_kernel, signature, options))
        if gradient == "*fp32":
            builds.extend(_lane_builds())
        norm = {"x_ptr": gradient, "partial_ptr": "*fp32", "elements": "i32"}
        kernel = _squared_norm_kernel
        builds.append(Build(f"squared_norm-{gradient}", kernel, norm, {"BLOCK": 4096}, 8))
    readback = {"values_ptr": "*fp64", "host_ptr": "*fp64", "count": "i32"}
    builds.append(Build("readback", _readback_kernel, readback, {"BLOCK": _BLOCK}))
    row = tile_row(target, "nf4")
    packed = {"packed_ptr": "*u8", "scale_ptr": "*fp32", "out_ptr": "*bf16", "elements": "i32"}
    options = {"LEVELS": _LEVELS, "HALF": NF4_BLOCK // 2, "BLOCKS": row["blocks"]}
    return [*builds, Build("nf4", _dequantise_nf4_kernel, packed, options, row["warps"])]


def _lane_builds() -> list[Build]:
    squares = {"x_ptr": "*fp32", "out_ptr": "*fp32"}
    builds = [Build("block_squares", _block_squares_kernel, squares, {"BLOCK": ADAMW_BLOCK})]
    for split in (False, True):
        signature = {
            "grad_ptr": "*fp32",
            "master_ptr": "*bf16" if split else "*fp32",
            "remainder_ptr": "*i16",
            "m_ptr": "*fp32",
            "v_ptr": "*fp32",
            "lanes_ptr": "*i32",
            "numbers_ptr": "*fp32",
        }
        options = {"NUMBERS": NUMBERS, "SPLIT": split, "BLOCK": ADAMW_BLOCK}
        builds.append(Build(f"lane_adamw-{split}", _lane_adamw_kernel, signature, options))
    return builds


BUILDS: list[Callable[[GPUTarget], list[Build]]] = [_norms, _elementwise, _rest, lora_builds]


def _marks(target: GPUTarget) -> list[pytest.MarkDecorator]:
    return [pytest.mark.full, *([pytest.mark.thorough] if target.arch in ALIKE else [])]


def _parameters() -> list[Any]:
    return [
        pytest.param(
            build,
            target,
            id=f"{build.name}-{target.arch}",
            marks=_marks(target) if target.arch not in QUICK or build.slow else [],
        )
        for make in BUILDS
        for target in TARGETS
        for build in make(target)
    ]


@pytest.mark.parametrize(("build", "target"), _parameters())
def test_compiles_and_fits(build: Build, target: GPUTarget) -> None:
    compiled = compile_or_skip(build, target)
    assert len(compiled.asm["cubin" if target.backend == "cuda" else "hsaco"]) > 0
    assert compiled.metadata.shared <= promised_bytes(target)


@pytest.mark.parametrize(
    ("build", "target"),
    [
        pytest.param(build, target, id=f"{build.name}-{target.arch}", marks=_marks(target))
        for target in TARGETS
        for build in lora_builds_in_fp32(target)
    ],
)
def test_lora_fits_in_fp32(build: Build, target: GPUTarget) -> None:
    assert compile_or_skip(build, target).metadata.shared <= shared_bytes(target)


@pytest.mark.parametrize("kernel", [_shrink_kernel, _expand_kernel, _outer_kernel])
def test_every_site_of_dropout_runs_one_program(kernel: Any) -> None:
    # Triton would make a constant of a 1, which then has no dtype, and a program of its own of 16.
    (site,) = (parameter for parameter in kernel.params if parameter.name == "site")
    assert site.do_not_specialize


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (GPUTarget("xpu", "none", 32), "0 compatible backends"),
        (GPUTarget("cuda", 999, 32), "sm_999"),
        (GPUTarget("hip", "gfx9999", 32), "RuntimeError"),
    ],
    ids=["no-backend", "no-such-sm", "no-such-gfx"],
)
def test_a_target_that_cannot_be_built_is_skipped_by_name(target: GPUTarget, reason: str) -> None:
    with pytest.raises(pytest.skip.Exception) as skipped:
        compile_or_skip(trivial(add_one), target)
    assert f"{target.arch}" in str(skipped.value)
    assert reason in str(skipped.value)


def test_an_error_of_a_kernel_is_no_skip() -> None:
    target = next(target for target in TARGETS if why_unbuildable(target) is None)
    with pytest.raises(CompilationError):
        compile_or_skip(trivial(refuse), target)
