"""AdamW on the CPU: a small C loop, compiled once on this machine, or torch where that fails.

Torch's fused CPU AdamW takes neither bf16 gradients beside an fp32 master nor a split master; the
loop takes both in one pass over memory, and gives the bits of `kernels.adamw`.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from slidepack.kernels import AdamWState, adamw

__all__ = ["CpuAdamW", "cpu_adamw"]

_SOURCE: Final = Path(__file__).with_name("adamw_cpu.c")
_FLAGS: Final = (
    "-O3",
    "-march=native",
    # Each operation is rounded by itself, as on the GPU and in torch.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp",
    "-shared",
    "-fPIC",
)
_TYPES: Final = {torch.float32: 0, torch.bfloat16: 1}
_TORCH_CHUNK: Final = 1 << 20
"""Elements that the torch form holds temporaries for; a multiple of a block of 8-bit moments."""


class _Scalars(ctypes.Structure):
    _fields_ = (
        ("clip", ctypes.c_float),
        ("step_size", ctypes.c_float),
        ("root_correction", ctypes.c_float),
        ("decay", ctypes.c_float),
        ("one_minus_beta1", ctypes.c_float),
        ("beta2", ctypes.c_float),
        ("one_minus_beta2", ctypes.c_float),
        ("eps", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class CpuAdamW:
    """A step over a flat range of host memory."""

    reason: str
    """Which form runs, and why."""
    _library: Any
    _threads: int

    def step(
        self,
        grad: Tensor,
        state: AdamWState,
        scalars: Tensor,
        *,
        beta1: float,
        beta2: float,
        eps: float,
        decayed: int,
    ) -> None:
        """Do one step in place; releases the interpreter while it works.

        Args:
            grad: [n], bf16 or fp32, on the CPU.
            state: master and moments, on the CPU.
            scalars: `adamw_scalars`, on the CPU.
            beta1: decay of the first moment.
            beta2: decay of the second moment.
            eps: added to the root of the second moment.
            decayed: elements from here on have no weight decay.
        """
        if self._library is None or state.exp_avg.dtype == torch.int8:
            _step_in_chunks(
                grad, state, scalars, beta1=beta1, beta2=beta2, eps=eps, decayed=decayed
            )
            return
        clip, step_size, root_correction, decay = scalars.tolist()
        packed = _Scalars(
            clip, step_size, root_correction, decay, 1.0 - beta1, beta2, 1.0 - beta2, eps
        )
        remainder = state.remainder
        self._library.slidepack_adamw(
            ctypes.c_int64(grad.numel()),
            ctypes.c_int64(decayed),
            ctypes.byref(packed),
            ctypes.c_void_p(grad.data_ptr()),
            _TYPES[grad.dtype],
            ctypes.c_void_p(state.master.data_ptr()),
            None if remainder is None else ctypes.c_void_p(remainder.data_ptr()),
            ctypes.c_void_p(state.exp_avg.data_ptr()),
            ctypes.c_void_p(state.exp_avg_sq.data_ptr()),
            _TYPES[state.exp_avg.dtype],
            self._threads,
        )


def cpu_adamw(cache: Path, threads: int) -> CpuAdamW:
    """Return the optimizer, compiling its loop where this machine has not done so yet.

    Args:
        cache: folder of compiled libraries.
        threads: that one step may use.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return CpuAdamW("torch operations: no C compiler was found", None, threads)
    try:
        library = _compiled(compiler, cache)
    except (OSError, subprocess.SubprocessError) as error:
        words = " ".join(str(getattr(error, "stderr", "") or error).split())[:200]
        return CpuAdamW(f"torch operations: the C loop was not compiled ({words})", None, threads)
    return CpuAdamW("a C loop compiled for this CPU", library, threads)


def _compiled(compiler: str, cache: Path) -> ctypes.CDLL:
    # A home folder may be shared by machines: -march=native is of this one.
    machine = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    flags = next((line for line in machine.splitlines() if line.startswith("flags")), "")
    text = "\0".join((_SOURCE.read_text("utf-8"), *_FLAGS, platform.machine(), flags))
    target = cache / f"adamw-{hashlib.sha256(text.encode()).hexdigest()[:24]}.so"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            built = Path(folder) / target.name
            subprocess.run(
                [compiler, *_FLAGS, "-o", str(built), str(_SOURCE), "-lm"],
                check=True,
                capture_output=True,
                text=True,
                timeout=120,
            )
            os.replace(built, target)
    return ctypes.CDLL(str(target))


def _step_in_chunks(
    grad: Tensor,
    state: AdamWState,
    scalars: Tensor,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    decayed: int,
) -> None:
    for start in range(0, grad.numel(), _TORCH_CHUNK):
        stop = min(start + _TORCH_CHUNK, grad.numel())
        adamw(
            grad[start:stop],
            state.part(start, stop),
            scalars,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            decayed=decayed - start,
        )
