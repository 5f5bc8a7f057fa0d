"""The rotary embedding's parameters, from configs of every vintage."""

from typing import Any, Final, Literal

import msgspec

from slidepack.engine.families.fields import GarbledError, UnsupportedError, positive, size
from slidepack.engine.families.table import Family

__all__ = ["RopeShape", "read_ropes"]

_LOCAL_THETA: Final = 10_000.0


class RopeShape(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embedding (Su et al., arXiv 2104.09864) and its long-context variants."""

    kind: Literal["default", "llama3", "linear"]
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


def read_ropes(config: dict[str, Any], family: Family) -> tuple[RopeShape, RopeShape | None]:
    """Return the parameters of full layers, and those of layers with a window where they differ.

    Raises:
        GarbledError: a field holds what it cannot.
        UnsupportedError: a kind of scaling that the engine does not compute.
    """
    # transformers 5 writes `rope_parameters`; 4 wrote `rope_theta` beside `rope_scaling`.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise GarbledError(f"the rotary scaling is {scaling!r}, not an object")
    theta = positive(config, "rope_theta", default=family.rope_theta)
    if not family.two_ropes:
        return _rope(scaling, theta), None
    local: Any = {}
    if {"full_attention", "sliding_attention"} & set(scaling):
        local = scaling.get("sliding_attention") or {}
        scaling = scaling.get("full_attention") or {}
        if not isinstance(scaling, dict) or not isinstance(local, dict):
            raise GarbledError("the rotary parameters of a kind of layer are not an object")
    local_theta = positive(config, "rope_local_base_freq", default=_LOCAL_THETA)
    return _rope(scaling, theta), _rope(local, local_theta)


def _rope(scaling: dict[str, Any], theta: float) -> RopeShape:
    if any(isinstance(value, dict) for value in scaling.values()):
        raise UnsupportedError("its rotary parameters differ from layer to layer")
    if positive(scaling, "partial_rotary_factor", default=1.0) != 1.0:
        raise UnsupportedError("it rotates a part of each head (partial_rotary_factor)")
    theta = positive(scaling, "rope_theta", default=theta)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return RopeShape(kind="default", theta=theta)
    if kind == "linear":
        return RopeShape(kind="linear", theta=theta, factor=positive(scaling, "factor"))
    if kind == "llama3":
        return RopeShape(
            kind="llama3",
            theta=theta,
            factor=positive(scaling, "factor"),
            low_freq_factor=positive(scaling, "low_freq_factor"),
            high_freq_factor=positive(scaling, "high_freq_factor"),
            original_max_position=size(scaling, "original_max_position_embeddings"),
        )
    raise UnsupportedError(f"its rotary scaling is {kind}; default, linear and llama3 are known")
