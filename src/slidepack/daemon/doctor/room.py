"""What of the data directory takes how much room, and where it can be deleted."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slidepack.daemon.paths import DataPaths
from slidepack.engine.tier_folders import OURS

__all__ = ["RoomUse", "room_used"]

_MOST_ENTRIES: Final = 200_000
"""Beyond so many files a sum takes longer than a page may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoomUse:
    """A part of the data directory."""

    name: str
    num_bytes: int
    whole: bool
    """False where there were too many files to count all."""
    where: str
    """The page on which it can be deleted; empty where nothing of it can."""


def room_used(paths: DataPaths) -> tuple[RoomUse, ...]:
    """Return the parts of the data directory, the biggest first; what is gone meanwhile is left
    out, and a file with several names counts once."""
    seen: set[tuple[int, int]] = set()
    parts = (
        # Hard links of checkpoints are in `origins` too: the jobs' own come first.
        ("Jobs: checkpoints and results", (paths.jobs, paths.packs), "/queue"),
        ("Models", (paths.models, paths.imports), "/models"),
        ("Datasets", (paths.datasets, paths.uploads), "/datasets"),
        ("Exports", (paths.exports,), "/queue"),
        ("What continued jobs begin with", (paths.origins,), ""),
        ("State of full fine-tunings on drives", (paths.home / OURS,), "/queue"),
        ("Backups of the database", (paths.home / "backups",), ""),
    )
    used = [_use(name, folders, where, seen) for name, folders, where in parts]
    return tuple(sorted(used, key=lambda use: -use.num_bytes))


def _use(name: str, folders: tuple[Path, ...], where: str, seen: set[tuple[int, int]]) -> RoomUse:
    total, entries = 0, 0
    waiting = list(folders)
    while waiting and entries < _MOST_ENTRIES:
        try:
            with os.scandir(waiting.pop()) as listed:
                for entry in listed:
                    entries += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                        continue
                    stat = entry.stat(follow_symlinks=False)
                    if (stat.st_dev, stat.st_ino) not in seen:
                        seen.add((stat.st_dev, stat.st_ino))
                        total += stat.st_blocks * 512
        except OSError:
            # Deleted while it was counted.
            continue
    return RoomUse(name=name, num_bytes=total, whole=not waiting, where=where)
