"""The control groups that this process is in, version 1 or 2."""

from pathlib import Path, PurePosixPath

from slidepack.daemon.probe.kernel_files import read_text


def cgroup_dirs(root: Path, controller: str) -> tuple[Path, ...]:
    """Return the folders whose limits bind this process, from its own group up to the top.

    A folder that the process cannot see (a container shows its group as the top) is left out.
    """
    base = root / "sys" / "fs" / "cgroup"
    folders: list[Path] = []
    for line in (read_text(root / "proc" / "self" / "cgroup") or "").splitlines():
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
