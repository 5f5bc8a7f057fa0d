"""Room on the disk: asked for before a checkpoint or a result is written, not found out halfway."""

import shutil
from pathlib import Path

from slidepack.engine.contract.errors import SlidepackError

__all__ = ["require_room"]


def require_room(folder: Path, needed: int, floor: int, what: str) -> None:
    """Check that so many bytes fit, and leave the floor free.

    Args:
        folder: on the file system asked about.
        needed: bytes that will be written.
        floor: bytes that stay free.
        what: is to be written, for the user.

    Raises:
        SlidepackError: DISK-FULL.
        OSError: the file system cannot be asked.
    """
    free = shutil.disk_usage(folder).free
    if free - needed >= floor:
        return
    kept = f", {_mib(floor)} are to stay free" if floor else ""
    raise SlidepackError(
        "DISK-FULL",
        f"The disk has no room for {what}; the last checkpoint is kept.",
        why=f"{_mib(needed)} needed, {_mib(free)} free at {folder}{kept}",
        fix="Free some space, then resume the job.",
    )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"
