"""Whether something keeps the clock right."""

import ctypes
from collections.abc import Callable
from typing import Final

_STATE_BYTES: Final = 512
"""More than the kernel's `timex` on every architecture; all zero, it asks and sets nothing."""
_TIME_ERROR: Final = 5
"""adjtimex(2): "The clock is not synchronized"."""


def clock_state() -> int:
    """Return what the kernel says of its clock, as adjtimex(2) has it; -1 where it refuses."""
    return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_STATE_BYTES)))


def clock_synchronised(state: Callable[[], int] = clock_state) -> bool | None:
    """Return whether the clock is kept right; None where the kernel does not say."""
    answer = state()
    return None if answer < 0 else answer != _TIME_ERROR
