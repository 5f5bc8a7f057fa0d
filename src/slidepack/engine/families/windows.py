"""Which layers see a window of the past only, from configs of every vintage."""

from typing import Any, Final

from slidepack.engine.families.fields import (
    GarbledError,
    UnsupportedError,
    flag,
    optional_size,
    size,
)
from slidepack.engine.families.table import Family

__all__ = ["layer_windows"]

_FULL: Final = "full_attention"
_SLIDING: Final = "sliding_attention"
_DEFAULT_WINDOW: Final = 4096
_DEFAULT_TAIL: Final = 28


def layer_windows(config: dict[str, Any], family: Family, layers: int) -> tuple[int | None, ...]:
    """Return, for each layer, how many tokens a token sees (itself among them); None is all.

    Empty where no layer has a window.

    Raises:
        GarbledError: a field holds what it cannot.
        UnsupportedError: a kind of layer that the engine does not compute.
    """
    window = _window(config, family)
    sliding = _by_rule(config, family, layers, window)
    named = _by_name(config, layers)
    if named is not None:
        # transformers looks at the names in the families whose layers differ, and only there.
        if family.windows in ("none", "all") and named != sliding:
            raise UnsupportedError("layer_types names other layers than this architecture has")
        sliding = named
    if not any(sliding):
        return ()
    if window is None:
        raise GarbledError("there are layers of sliding_attention and no sliding_window")
    return tuple(window if slides else None for slides in sliding)


def _window(config: dict[str, Any], family: Family) -> int | None:
    if family.windows == "none":
        return None
    if family.windows == "tail" and not flag(config, "use_sliding_window"):
        return None
    return optional_size(config, "sliding_window", default=_DEFAULT_WINDOW)


def _by_rule(
    config: dict[str, Any], family: Family, layers: int, window: int | None
) -> tuple[bool, ...]:
    if window is None:
        return (False,) * layers
    match family.windows:
        case "tail":
            first = config.get("max_window_layers", _DEFAULT_TAIL)
            if not isinstance(first, int) or isinstance(first, bool) or first < 0:
                raise GarbledError(f"max_window_layers is {first!r}, not a whole number")
            return tuple(layer >= first for layer in range(layers))
        case "pattern":
            every = size(config, "sliding_window_pattern", default=family.window_pattern)
            return tuple((layer + 1) % every != 0 for layer in range(layers))
        case _:
            return (True,) * layers


def _by_name(config: dict[str, Any], layers: int) -> tuple[bool, ...] | None:
    names = config.get("layer_types")
    if names is None:
        return None
    if not isinstance(names, list) or len(names) != layers:
        raise GarbledError(f"layer_types is not a list of {layers} names")
    other = [name for name in names if name not in (_FULL, _SLIDING)]
    if other:
        raise UnsupportedError(f"it has layers of {other[0]}")
    return tuple(name == _SLIDING for name in names)
