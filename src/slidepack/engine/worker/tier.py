"""What of a run's state is on drives, as its plan says, and the folders it has there."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import KEPT, RunFolder
from slidepack.engine.nvme.choose import open_transport
from slidepack.engine.nvme.failures import disk_error, folder_error
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.sliding.tier_store import NO_LINKS, TierSetup
from slidepack.engine.tier_folders import (
    leave_folder,
    named_twice,
    remove_dead,
    take_folder,
    tier_folder,
)
from slidepack.engine.worker.room import require_room

__all__ = ["TierFolders", "require_copies", "tier_setup"]

_TRIED: Final = ".links"
_WAIT_SECONDS: Final = 10.0
"""For another worker that just removes what a killed one left in our folder."""


class TierFolders:
    """The folders of one job on its drives, held by a lock for as long as its worker lives."""

    def __init__(
        self, drives: Sequence[Path], job: Path, *, wait_seconds: float = _WAIT_SECONDS
    ) -> None:
        """Take them, and remove those of workers that were killed.

        Args:
            drives: a folder on each drive, which is there.
            job: the folder of its attempts, which names it.
            wait_seconds: for another process that has one of them.

        Raises:
            SlidepackError: RUN-SPEC-INVALID: two of them are one folder; DISK-UNWRITABLE, DISK-FULL
                or DISK-FAILED; RUN-FOLDER-BUSY where another worker has them.
        """
        _require_different(drives)
        self.paths = tuple(tier_folder(drive, job) for drive in drives)
        self._locks: list[int] = []
        for drive, path in zip(drives, self.paths, strict=True):
            try:
                self._locks.append(take_folder(path, wait_seconds=wait_seconds))
            except OSError as error:
                self.close()
                raise folder_error(error, drive, path) from error
            remove_dead(drive)

    def close(self) -> None:
        """Let go, and remove the folders with all that is in them."""
        while self._locks:
            lock = self._locks.pop()
            leave_folder(self.paths[len(self._locks)], lock)


def _require_different(drives: Sequence[Path]) -> None:
    """Refuse two names of one folder, which a run would wait for as if another had it.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    twins = named_twice(drives)
    if twins is not None:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "Two folders for state on drives are the same one.",
            why=f"{twins[0]} and {twins[1]} are both {os.path.realpath(twins[0])}",
            fix="Name each folder once: stripes help on different drives alone.",
        )


def tier_setup(
    plan: RunPlan, device: torch.device, run: RunFolder, folders: TierFolders
) -> TierSetup:
    """Return what a run's state is told of its drives.

    Args:
        plan: of a full fine-tuning that has drives.
        device: where the passes run.
        run: whose checkpoints link to the files, where they are on the same file system.
        folders: on the drives.
    """
    assert plan.full is not None
    assert plan.full.nvme is not None
    nvme, on_card = plan.full.nvme, device.type == "cuda" and plan.full.engine == "gpu"
    linked = _links_to(run.root, folders.paths)
    return TierSetup(
        folders=folders.paths,
        moments=frozenset(nvme.moments),
        master=frozenset(nvme.master),
        transport=open_transport(device_memory=on_card),
        chunk=nvme.chunk_elements,
        # An attempt that goes on finds the files of the one before it held by checkpoints, and
        # nobody promises when these go: the room that it needs itself is taken before it starts.
        sets=1 + KEPT if linked else 1,
        copies=0 if linked else KEPT + 1,
    )


def require_copies(state: TrainState, run: RunFolder) -> None:
    """Refuse to begin where checkpoints are copies of what is on drives and do not fit.

    Args:
        state: allocated.
        run: whose checkpoints they are.

    Raises:
        SlidepackError: DISK-FULL.
    """
    if state.tier is None or not state.tier.copies:
        return
    require_room(
        run.root,
        state.tier.copies * (state.tier.bytes + state.ram_bytes),
        run.read_identity().disk_floor_bytes,
        "the checkpoints, which are copies here: the file system makes no links between "
        "this folder and those of the drives",
    )


def _links_to(run: Path, folders: Sequence[Path]) -> bool:
    """Return whether a checkpoint can have links to files on the drives.

    Tried, not asked: file systems without links, and two mounts of one, do not show it.

    Raises:
        SlidepackError: DISK-FULL, DISK-UNWRITABLE or DISK-FAILED.
    """
    target = run / _TRIED
    for folder in folders:
        source = folder / _TRIED
        try:
            source.write_bytes(b"")
            target.unlink(missing_ok=True)
            os.link(source, target)
        except OSError as error:
            if error.errno in NO_LINKS:
                return False
            raise disk_error(error, "allocate", folder) from error
        finally:
            source.unlink(missing_ok=True)
            target.unlink(missing_ok=True)
    return True
