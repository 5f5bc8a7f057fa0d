"""Polls a condition instead of sleeping for a guessed time."""

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T | None], *, seconds: float = 60.0, what: str = "") -> _T:
    """Return the condition's first truthy value, or fail after a deadline."""
    deadline = time.monotonic() + seconds
    while True:
        # Looked at once more after it: whoever was stalled for so long has not looked since.
        late = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if late:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}")
        time.sleep(0.02)
