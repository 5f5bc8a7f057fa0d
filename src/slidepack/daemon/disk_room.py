"""Whether the disk has room for a run, above the floor that is kept free."""

import shutil
from pathlib import Path

from slidepack.engine.contract.plan import RunPlan


class DiskRoom:
    """The disk of the data directory."""

    def __init__(self, home: Path, floor_bytes: int) -> None:
        """Name a folder on the disk, and how many bytes stay free."""
        self._home = home
        self.floor_bytes = floor_bytes

    def shortage(self, plan: RunPlan) -> str:
        """Return why a run does not fit, in words; empty where it does.

        What earlier attempts left counts for nothing: a new one writes checkpoints of its own
        before theirs are deleted.

        Raises:
            OSError: the disk does not answer.
        """
        free = shutil.disk_usage(self._home).free
        needed = plan.predicted_disk_bytes
        if needed + self.floor_bytes <= free:
            return ""
        kept = f", {self.floor_bytes / 1e9:.2f} GB of that is kept free" if self.floor_bytes else ""
        return f"{needed / 1e9:.2f} GB needed on the disk, {free / 1e9:.2f} GB free{kept}"
