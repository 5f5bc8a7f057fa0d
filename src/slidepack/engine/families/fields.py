"""Reads single fields of a `config.json`, and says which one is garbled."""

import math
from typing import Any, Final

__all__ = [
    "LARGEST_SIZE",
    "GarbledError",
    "UnsupportedError",
    "flag",
    "optional_positive",
    "optional_size",
    "positive",
    "size",
]

LARGEST_SIZE: Final = (1 << 31) - 1


class GarbledError(Exception):
    """A field of the config is missing or holds what it cannot."""


class UnsupportedError(Exception):
    """The config asks for what the engine does not compute."""


def size(
    config: dict[str, Any], name: str, *, default: int | None = None, most: int = LARGEST_SIZE
) -> int:
    """Return a whole number from 1 to `most`; null counts as missing.

    Raises:
        GarbledError: it is another thing, or missing without a default.
    """
    value = default if config.get(name) is None else config[name]
    if value is None:
        raise GarbledError(f"{name} is missing")
    # bool is an int to Python.
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise GarbledError(f"{name} is {value!r}, not a whole number from 1 to {most}")
    return value


def positive(config: dict[str, Any], name: str, *, default: float | None = None) -> float:
    """Return a finite number above 0; null counts as missing.

    Raises:
        GarbledError: it is another thing, or missing without a default.
    """
    value = default if config.get(name) is None else config[name]
    if value is None:
        raise GarbledError(f"{name} is missing")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise GarbledError(f"{name} is {value!r}, not a number above 0")
    return float(value)


def optional_size(config: dict[str, Any], name: str, *, default: int | None) -> int | None:
    """Return a whole number above 0, or None where the config says null.

    Raises:
        GarbledError: it is another thing.
    """
    if name in config and config[name] is None:
        return None
    return None if name not in config and default is None else size(config, name, default=default)


def optional_positive(config: dict[str, Any], name: str, *, default: float | None) -> float | None:
    """Return a number above 0, or None where the config says null.

    Raises:
        GarbledError: it is another thing.
    """
    if name in config and config[name] is None:
        return None
    missing = name not in config and default is None
    return None if missing else positive(config, name, default=default)


def flag(config: dict[str, Any], name: str, *, default: bool = False) -> bool:
    """Return true or false; null counts as missing.

    Raises:
        GarbledError: it is another thing.
    """
    value = default if config.get(name) is None else config[name]
    if not isinstance(value, bool):
        raise GarbledError(f"{name} is {value!r}, not true or false")
    return value
