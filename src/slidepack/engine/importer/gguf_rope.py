"""The rotary part of a `config.json`, from the keys and the tensor of a GGUF file."""

from typing import Any, Final

import numpy as np

from slidepack.engine.families.gguf_rope import stretched_rope
from slidepack.engine.families.gguf_table import LOCAL_THETA, ROPE_FREQS, GgufFamily
from slidepack.engine.families.table import Family
from slidepack.engine.importer.gguf_file import GgufFile, broken, unsupported
from slidepack.engine.importer.gguf_weights import dequantised

__all__ = ["read_rope"]

_THETA: Final = 10_000.0
"""llama.cpp's, where a file names none."""
_GLOBAL_KEYS: Final = ("rope.freq_base", "rope.global.freq_base")
_LOCAL_KEYS: Final = ("rope.freq_base_swa", "rope.local.freq_base")
"""Second those of Ollama's own converter."""


def read_rope(gguf: GgufFile, family: Family, written: GgufFamily, head_dim: int) -> dict[str, Any]:
    """Return `rope_theta`, `rope_scaling` and, with two kinds of layers, `rope_local_base_freq`.

    Args:
        gguf: the file.
        family: of the model.
        written: how llama.cpp computes it.
        head_dim: rows in a head.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED for another kind of scaling, MODEL-BROKEN.
    """
    default = family.rope_theta if family.two_ropes else _THETA
    theta = _first(gguf, _GLOBAL_KEYS) or default
    config: dict[str, Any] = {"rope_theta": theta}
    if family.two_ropes:
        config["rope_local_base_freq"] = _first(gguf, _LOCAL_KEYS) or LOCAL_THETA
    linear = _linear_factor(gguf)
    if ROPE_FREQS in gguf.tensors:
        if not written.long_rope:
            raise unsupported(gguf.path, f"it has {ROPE_FREQS}, which only Llama-type models use")
        if linear != 1.0:
            raise unsupported(gguf.path, f"it scales its rotary frequencies twice ({ROPE_FREQS})")
        return config | _stretched(gguf, theta, head_dim)
    if linear != 1.0:
        config["rope_scaling"] = {"rope_type": "linear", "factor": linear}
    return config


def _linear_factor(gguf: GgufFile) -> float:
    """Return by what positions are divided."""
    prefix = f"{gguf.architecture}.rope"
    kind = gguf.text(f"{prefix}.scaling.type") or "linear"
    if kind == "none":
        return 1.0
    factor = gguf.number(f"{prefix}.scaling.factor") or gguf.number(f"{prefix}.scale_linear") or 1.0
    if kind != "linear":
        raise unsupported(gguf.path, f"its rotary scaling is {kind}")
    if factor <= 0:
        raise broken(gguf.path, f"{prefix}.scaling.factor is {factor:g}")
    return factor


def _stretched(gguf: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    tensor = gguf.tensors[ROPE_FREQS]
    divisors = dequantised(gguf, tensor)
    if divisors.shape != (head_dim // 2,):
        raise broken(
            gguf.path, f"{ROPE_FREQS} is {divisors.shape} where its heads have {head_dim} rows"
        )
    rope = stretched_rope(divisors, theta, head_dim) if np.isfinite(divisors).all() else None
    if rope is None:
        raise unsupported(
            gguf.path,
            f"{ROPE_FREQS} (from {divisors.min():g} to {divisors.max():g}) follows no scaling "
            "like Llama 3.1's",
        )
    if rope.kind == "default":
        return {}
    return {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": rope.factor,
            "low_freq_factor": rope.low_freq_factor,
            "high_freq_factor": rope.high_freq_factor,
            "original_max_position_embeddings": rope.original_max_position,
        }
    }


def _first(gguf: GgufFile, names: tuple[str, ...]) -> float | None:
    values = (gguf.number(f"{gguf.architecture}.{name}") for name in names)
    found = next((value for value in values if value is not None), None)
    if found is not None and found <= 0:
        raise broken(gguf.path, f"{gguf.architecture}.{names[0]} is {found:g}")
    return found
