"""Fields of a form that may hold several values: `1e-4, 2e-4`, or `1e-5..1e-3 x4`."""

import re
from typing import Final

from slidepack.daemon.sweeps.space import MULTIPLE, VARIABLE, WHOLE
from slidepack.engine.data.rows import clip

__all__ = ["SEVERAL", "split_values"]

SEVERAL: Final = frozenset(VARIABLE) - {"targets", "rslora", "schedule", MULTIPLE}
"""Settings of which a sweep may try several."""
_BY_RATIO: Final = frozenset(("lr", "rank", "alpha", "batch_size", "weight_decay"))
"""Ranges of these go up by a factor, those of others by a distance."""
_NUMBER: Final = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE: Final = re.compile(
    rf"({_NUMBER})\s*(?:\.\.\.?|…|to|-{{1,2}}>)\s*({_NUMBER})\s*[x×:/]\s*(\d{{1,4}})"  # noqa: RUF001 - a times sign is what some keyboards have
)
_MOST: Final = 500
_DIGITS: Final = 3


def split_values(setting: str, text: str) -> list[str]:
    """Return the values that a field holds, as texts; a range is written out.

    Args:
        setting: what the field is for; of one that takes a single value, the text is that.
        text: as it was typed, not empty.

    Raises:
        ValueError: it cannot be told what is meant.
    """
    if setting not in SEVERAL:
        return [text]
    found = _RANGE.fullmatch(text)
    if found is not None:
        return _spread(setting, float(found[1]), float(found[2]), int(found[3]))
    parts = [part for part in re.split(r"\s*;\s*|,\s+|\s+", text.strip().rstrip(",;")) if part]
    if len(parts) == 1 and "," in text:
        parts = _by_comma(setting, text)
    if len(set(parts)) != len(parts):
        twice = next(part for part in parts if parts.count(part) > 1)
        raise ValueError(f"{clip(twice)} stands there twice")
    return parts


def _by_comma(setting: str, text: str) -> list[str]:
    """Split at commas without a space, where none of them can be a decimal comma."""
    parts = [part for part in text.split(",") if part]
    if setting in WHOLE or all("." in part or "e" in part.lower() for part in parts):
        return parts
    raise ValueError(
        f"{setting} is {clip(text)}; write a dot for a fraction, or a space behind each comma"
    )


def _spread(setting: str, low: float, high: float, count: int) -> list[str]:
    if not 2 <= count <= _MOST:
        raise ValueError(f"it asks for {count} values; use 2 to {_MOST}")
    if low >= high:
        raise ValueError("the range ends where it begins, or before; give the lower end first")
    if setting in _BY_RATIO and low > 0.0:
        values = [low * (high / low) ** (place / (count - 1)) for place in range(count)]
    else:
        values = [low + (high - low) * place / (count - 1) for place in range(count)]
    if setting in WHOLE:
        shown = [str(round(value)) for value in values]
    else:
        shown = [f"{value:.{_DIGITS}g}" for value in values]
    return list(dict.fromkeys(shown))
