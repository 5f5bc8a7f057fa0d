"""Whether the disks have room for a run: that of the data directory, and those of its state."""

import os
from collections import Counter
from pathlib import Path
from typing import Final

from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.probe.drives import disk_usage, read_mounts
from slidepack.daemon.probe.tier import links_possible
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.plan import NvmePlan, RunPlan
from slidepack.engine.memory_full_need import drive_state_bytes
from slidepack.engine.memory_parts import RESULT_COPIES
from slidepack.engine.shape import read_shape

__all__ = ["TierRoom"]

_ROOT: Final = Path("/")
_OTHERS: Final = "other folders can be named in the setting nvme_folders"


class TierRoom:
    """Asks the disks as they are now, each once for all that goes there."""

    def __init__(self, home: Path, room: DiskRoom) -> None:
        """Bind the data directory and its disk."""
        self._home = home
        self._room = room

    def shortage(self, plan: RunPlan, spec: JobSpec, replaceable: int = 0) -> str:
        """Return why a run does not fit the disks, in words; empty where it does.

        Args:
            plan: of the run.
            spec: of its job.
            replaceable: bytes of checkpoints of earlier attempts that go as new ones come. Where
                state is on drives they count for nothing: all files are made at the start.

        Raises:
            OSError: a disk does not answer.
            SlidepackError: the model's folder cannot be read.
        """
        if plan.full is None or plan.full.nvme is None:
            most = plan.predicted_disk_bytes * (RESULT_COPIES - 1) // RESULT_COPIES
            return self._room.shortage(plan.predicted_disk_bytes - min(replaceable, most))
        folders = [Path(folder) for folder in plan.full.nvme.folders]
        for folder in folders:
            if not folder.is_dir():
                return f"the folder {folder} for its state is not there; {_OTHERS}"
        beside, each = self._parts(plan, plan.full.nvme, spec, folders)
        at_home = os.stat(self._home).st_dev
        needed = Counter({at_home: beside})
        for folder in folders:
            needed[os.stat(folder).st_dev] += each
        for folder in folders:
            device = os.stat(folder).st_dev
            _, free = disk_usage(str(folder))
            if device != at_home and needed[device] > free:
                return (
                    f"{needed[device] / 1e9:.2f} GB needed in {folder}, {free / 1e9:.2f} GB free; "
                    f"{_OTHERS}"
                )
        return self._room.shortage(needed[at_home])

    def _parts(
        self, plan: RunPlan, tier: NvmePlan, spec: JobSpec, folders: list[Path]
    ) -> tuple[int, int]:
        """Return the bytes of checkpoints and result beside the drives' files, and those of each
        folder's files."""
        assert plan.full is not None
        shape = read_shape(Path(spec.base.path))
        state = drive_state_bytes(shape, plan.full, split=plan.precision == "bf16")
        # Where checkpoints are links, the drives have a file for each; else they are copies.
        linked = links_possible(self._home, folders, read_mounts(_ROOT))
        on_drives = tier.held_bytes + (RESULT_COPIES - 1) * state * linked
        in_all = plan.predicted_disk_bytes - (tier.held_bytes - state)
        beside = in_all - RESULT_COPIES * state * linked
        return beside, -(-on_drives // len(folders))
