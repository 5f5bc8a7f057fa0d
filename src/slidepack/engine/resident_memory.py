"""How much RAM this process held at most. Torch-free."""

from pathlib import Path
from typing import Final

__all__ = ["known_peak_resident_bytes", "peak_resident_bytes"]

_STATUS: Final = Path("/proc/self/status")


def peak_resident_bytes() -> int:
    """Return the largest resident set so far.

    Raises:
        OSError: the system does not tell.
    """
    # Not getrusage: its peak also counts the process that this one was forked from.
    status = _STATUS.read_text(encoding="ascii", errors="replace")
    kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    if not kilobytes:
        raise OSError(f"{_STATUS} names no VmHWM")
    return int(kilobytes[0]) * 1024


def known_peak_resident_bytes() -> int | None:
    """Return the largest resident set so far; None where the system does not tell."""
    try:
        return peak_resident_bytes()
    except OSError:
        return None
