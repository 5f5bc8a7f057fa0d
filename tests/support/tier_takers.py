"""Processes that have a folder on a drive, or remove it, again and again."""

import os
from pathlib import Path

from slidepack.engine.tier_folders import leave_folder, remove_dead, remove_if_dead, take_folder


def take_and_leave(folder: Path, turns: int) -> None:
    """Have a folder again and again; while it is had, nobody else has, or removes, it."""
    for _ in range(turns):
        lock = take_folder(folder, wait_seconds=60.0)
        file = folder / "mine.state"
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        assert os.path.samestat(os.fstat(descriptor), file.stat())
        assert os.path.samestat(os.fstat(lock), (folder / "slidepack.lock").stat())
        os.close(descriptor)
        leave_folder(folder, lock)


def remove_all_the_time(folder: Path) -> None:
    """Remove a folder whenever nobody has it, until this process is killed."""
    while True:
        remove_if_dead(folder)
        remove_dead(folder.parent.parent)
