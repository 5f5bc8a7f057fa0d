"""Compiling kernels for cards that are not here."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.errors import PTXASError

from slidepack.kernels.tiles import read_tile_table

TARGETS: Final = [
    GPUTarget("cuda", 80, 32),
    GPUTarget("cuda", 86, 32),
    GPUTarget("cuda", 89, 32),
    GPUTarget("cuda", 90, 32),
    GPUTarget("cuda", 120, 32),
    GPUTarget("hip", "gfx1030", 32),
    GPUTarget("hip", "gfx1100", 32),
    GPUTarget("hip", "gfx1201", 32),
]
QUICK: Final = {90, "gfx1100"}
"""Compiled in every run; the others in the long one."""
ALIKE: Final = {89}
"""It has the limits of 86, and what that can do besides."""
_SHARED_KIB: Final = {80: 163, 86: 99, 89: 99, 90: 227, 120: 99}
"""Shared memory that one program may take (CUDA programming guide, table of capabilities)."""
_SHARED_KIB_AMD: Final = 64
"""Local data share of one workgroup, of every target here."""
_SHARED_KIB_DEFAULT: Final = 48
"""What the default sizes promise to fit, for cards that nobody measured."""


@dataclass(frozen=True)
class Build:
    """One kernel in one configuration."""

    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any] = field(default_factory=dict)
    warps: int = 4
    aligned: tuple[str, ...] = ()
    """Pointers and integers that the launcher passes as multiples of 16."""
    slow: bool = False
    """Not compiled in every run, whatever the target."""


def tile_row(target: GPUTarget, operation: str) -> dict[str, Any]:
    """Return the sizes that a card of this target would take from the tile table."""
    table = read_tile_table()
    row: dict[str, Any] = (
        table.get(_device_class(target), {}).get(operation) or table["default"][operation]
    )
    return row


def shared_bytes(target: GPUTarget) -> int:
    """Return the shared memory that a program may take on a target."""
    kib = _SHARED_KIB[int(target.arch)] if target.backend == "cuda" else _SHARED_KIB_AMD
    return kib * 1024


def promised_bytes(target: GPUTarget) -> int:
    """Return the shared memory that the tile table promises to stay within, in 16 bits."""
    measured = _device_class(target) in read_tile_table()
    return shared_bytes(target) if measured else _SHARED_KIB_DEFAULT * 1024


def _device_class(target: GPUTarget) -> str:
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


def compile_build(build: Build, target: GPUTarget) -> Any:
    """Compile a kernel; return Triton's result."""
    signature = build.signature | dict.fromkeys(build.constants, "constexpr")
    ordered = {name: signature[name] for name in build.kernel.arg_names}
    divisible = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(ordered)
        if name in build.aligned
    }
    source = ASTSource(
        fn=build.kernel, signature=ordered, constexprs=build.constants, attrs=divisible
    )
    return triton.compile(source, target=target, options={"num_warps": build.warps})


def add_one(pointer: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Be a kernel that every target can build."""
    index = tl.arange(0, BLOCK)
    tl.store(pointer + index, tl.load(pointer + index) + 1.0)


def refuse(pointer: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Be a kernel that no target can build."""
    tl.static_assert(BLOCK < 0, "never")


def trivial(function: Callable[..., None]) -> Build:
    """Return the build of one of the two above."""
    return Build(function.__name__, triton.jit(function), {"pointer": "*fp32"}, {"BLOCK": 64})


@functools.cache
def why_unbuildable(target: GPUTarget) -> str | None:
    """Return why the installed Triton builds nothing for a target; None where it does."""
    try:
        compile_build(trivial(add_one), target)
    except (PTXASError, RuntimeError, OSError) as error:
        # The whole message may hold a listing of the program.
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return None


def compile_or_skip(build: Build, target: GPUTarget) -> Any:
    """Compile a kernel, or skip the test where nothing can be compiled."""
    reason = why_unbuildable(target)
    if reason is not None:
        pytest.skip(f"Triton {triton.__version__} builds nothing for {target}: {reason}")
    return compile_build(build, target)
