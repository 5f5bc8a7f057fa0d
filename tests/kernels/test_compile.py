"""Every kernel, in every configuration that is shipped, compiled for cards that are not here.

A target for which the installed Triton cannot build even a trivial kernel is skipped by name; an
error of one of ours is a failure.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompilationError
from triton.runtime.errors import PTXASError

from slidepack.kernels.adamw import ADAMW_BLOCK, _adamw_kernel, _squared_norm_kernel
from slidepack.kernels.gated import _gated_bwd_kernel, _gated_fwd_kernel
from slidepack.kernels.linear_cross_entropy import _cross_entropy_kernel
from slidepack.kernels.nf4 import NF4_BLOCK, _dequantise_nf4_kernel
from slidepack.kernels.rms_norm import _rms_norm_bwd_kernel, _rms_norm_fwd_kernel
from slidepack.kernels.rope import _rope_kernel

TARGETS = [
    GPUTarget("cuda", 80, 32),
    GPUTarget("cuda", 86, 32),
    GPUTarget("cuda", 89, 32),
    GPUTarget("cuda", 90, 32),
    GPUTarget("cuda", 120, 32),
    GPUTarget("hip", "gfx1030", 32),
    GPUTarget("hip", "gfx1100", 32),
    GPUTarget("hip", "gfx1201", 32),
]
QUICK = {90, "gfx1100"}
"""Compiled in every run; the others in the long one."""


@dataclass(frozen=True)
class Build:
    """One kernel in one configuration."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any] = field(default_factory=dict)
    warps: int = 4


def _norms() -> list[Build]:
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
    builds = []
    for block, warps in ((1024, 4), (4096, 8), (16384, 16)):
        for plus_one, residual in ((False, False), (True, True)):
            options = {"PLUS_ONE": plus_one, "BLOCK": block}
            name = f"{block}-{plus_one}-{residual}"
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
                    options | {"HAS_DSUM": residual, "WEIGHT_GRAD": not residual},
                    warps,
                ),
            ]
    return builds


def _elementwise() -> list[Build]:
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


def _rest() -> list[Build]:
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
            } | dict.fromkeys(("beta1", "beta2", "eps"), "fp32")
            options = {"SPLIT": split, "INT8": moment == "*i8", "BLOCK": ADAMW_BLOCK}
            name = f"adamw-{gradient}-{split}-{moment}"
            builds.append(Build(name, _adamw_kernel, signature, options))
        norm = {"x_ptr": gradient, "partial_ptr": "*fp32", "elements": "i32"}
        kernel = _squared_norm_kernel
        builds.append(Build(f"squared_norm-{gradient}", kernel, norm, {"BLOCK": 4096}, 8))
    packed = {"packed_ptr": "*u8", "scale_ptr": "*fp32", "levels_ptr": "*fp32"}
    packed |= {"out_ptr": "*bf16", "elements": "i32"}
    options = {"BLOCK": NF4_BLOCK, "PROGRAM": 2048}
    return [*builds, Build("nf4", _dequantise_nf4_kernel, packed, options, 8)]


BUILDS: list[Callable[[], list[Build]]] = [_norms, _elementwise, _rest]


def _parameters() -> list[Any]:
    return [
        pytest.param(
            build,
            target,
            id=f"{build.name}-{target.arch}",
            marks=[] if target.arch in QUICK else [pytest.mark.full],
        )
        for make in BUILDS
        for build in make()
        for target in TARGETS
    ]


def _add_one(pointer: tl.tensor, BLOCK: tl.constexpr) -> None:
    index = tl.arange(0, BLOCK)
    tl.store(pointer + index, tl.load(pointer + index) + 1.0)


def _refuse(pointer: tl.tensor, BLOCK: tl.constexpr) -> None:
    tl.static_assert(BLOCK < 0, "never")


def _trivial(function: Callable[..., None]) -> Build:
    return Build(function.__name__, triton.jit(function), {"pointer": "*fp32"}, {"BLOCK": 64})


def _compile(build: Build, target: GPUTarget) -> bytes:
    signature = build.signature | dict.fromkeys(build.constants, "constexpr")
    ordered = {name: signature[name] for name in build.kernel.arg_names}
    source = ASTSource(fn=build.kernel, signature=ordered, constexprs=build.constants)
    compiled = triton.compile(source, target=target, options={"num_warps": build.warps})
    binary: bytes = compiled.asm["cubin" if target.backend == "cuda" else "hsaco"]
    return binary


@functools.cache
def _why_unbuildable(target: GPUTarget) -> str | None:
    """Return why the installed Triton builds nothing for a target; None where it does."""
    try:
        _compile(_trivial(_add_one), target)
    except (PTXASError, RuntimeError, OSError) as error:
        # The whole message may hold a listing of the program.
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return None


def _compile_or_skip(build: Build, target: GPUTarget) -> bytes:
    reason = _why_unbuildable(target)
    if reason is not None:
        pytest.skip(f"Triton {triton.__version__} builds nothing for {target}: {reason}")
    return _compile(build, target)


@pytest.mark.parametrize(("build", "target"), _parameters())
def test_compiles(build: Build, target: GPUTarget) -> None:
    assert len(_compile_or_skip(build, target)) > 0


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
        _compile_or_skip(_trivial(_add_one), target)
    assert f"{target.arch}" in str(skipped.value)
    assert reason in str(skipped.value)


def test_an_error_of_a_kernel_is_no_skip() -> None:
    target = next(target for target in TARGETS if _why_unbuildable(target) is None)
    with pytest.raises(CompilationError):
        _compile_or_skip(_trivial(_refuse), target)
