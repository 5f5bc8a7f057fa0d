"""Polls a condition instead of sleeping for a guessed time."""

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T | None], *, seconds: float = 60.0, what: str = "") -> _T:
    """Return the condition's first truthy value, or fail after a deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what or condition}")
