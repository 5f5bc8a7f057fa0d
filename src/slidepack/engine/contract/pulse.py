"""The sign that a worker gets on with what it must end before it can leave: the time of a file."""

from pathlib import Path
from typing import Final

__all__ = ["PULSE_FILE", "last_beat"]

PULSE_FILE: Final = "pulse"
"""In the run folder."""


def last_beat(run_folder: Path) -> int | None:
    """Return what is another number whenever the worker has got on; None where it never told."""
    try:
        return (run_folder / PULSE_FILE).stat().st_mtime_ns
    except OSError:
        return None
