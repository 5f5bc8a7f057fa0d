"""Polls a condition instead of sleeping for a guessed time."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

_T = TypeVar("_T")

PATIENCE: Final = 300.0
"""Seconds, for whatever has to come: only what hangs takes so long.

A machine that runs several processes of tests takes many times as long as an idle one, and a limit
that it can reach tells nothing of the code. What has to come *soon* is no matter of a test.
"""


def wait_until(
    condition: Callable[[], _T | None], *, seconds: float = PATIENCE, what: str = ""
) -> _T:
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
