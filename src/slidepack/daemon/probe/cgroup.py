"""The control groups that a process is in, version 1 or 2."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from slidepack.daemon.probe.kernel_files import read_text

_NO_LIMIT: Final = 1 << 60
"""Version 1 writes the largest page-aligned 63-bit number for "no limit"."""


def memory_limit(folder: Path) -> int | None:
    """Return a control group's limit on memory, in bytes; None where it has none."""
    text = read_text(folder / "memory.max") or read_text(folder / "memory.limit_in_bytes") or ""
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None


def lowest_memory_limit(folders: Iterable[Path]) -> int | None:
    """Return the limit that binds inside all of these groups, in bytes; None where none does."""
    limits = map(memory_limit, folders)
    return min((limit for limit in limits if limit is not None), default=None)


def cgroup_dirs(root: Path, controller: str, process: str = "self") -> tuple[Path, ...]:
    """Return the folders whose limits bind a process, from its own group up to the top.

    A folder that cannot be seen from here (a container shows its group as the top) is left out.

    Args:
        root: the file system's root; holds `proc` and `sys`.
        controller: `memory`, `cpu`.
        process: a pid, or `self`.
    """
    base = root / "sys" / "fs" / "cgroup"
    folders: list[Path] = []
    for line in (read_text(root / "proc" / process / "cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            unified = base / "unified"
            folders += _upwards(unified if unified.is_dir() else base, path)
        elif controller in controllers.split(","):
            joined = base / controllers
            folders += _upwards(joined if joined.is_dir() else base / controller, path)
    return tuple(folder for folder in folders if folder.is_dir())


def _upwards(top: Path, path: str) -> list[Path]:
    # A path outside the process's cgroup namespace begins with /.. and cannot be followed.
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    return [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
