"""Where everything lives under the data directory; every name is made by us, never by a user."""

import errno
from pathlib import Path

from slidepack.engine.contract.errors import SlidepackError


class DataPaths:
    """The files and folders of one data directory."""

    def __init__(self, home: Path) -> None:
        """Wrap the directory; nothing is created."""
        self.home = home
        self.database = home / "slidepack.db"
        self.address = home / "daemon.json"
        self.lock = home / "daemon.lock"
        self.models = home / "models"
        self.datasets = home / "datasets"
        self.jobs = home / "jobs"
        self.packs = home / "packs"
        self.origins = home / "origins"
        self.imports = home / "imports"
        self.exports = home / "exports"
        self.chats = home / "chats"
        self.uploads = home / "uploads"

    def create(self) -> None:
        """Create the directories, readable by their owner only.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL.
        """
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            for folder in (
                self.models,
                self.datasets,
                self.jobs,
                self.packs,
                self.origins,
                self.imports,
                self.exports,
                self.chats,
                self.uploads,
            ):
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise disk_error(error, self.home) from error

    def attempt(self, job_id: int, number: int) -> Path:
        """Return the run folder of an attempt."""
        return self.jobs / str(job_id) / f"attempt-{number:03d}"

    def pack(self, nonce: str) -> Path:
        """Return the folder of a pack, by what its worker is known by."""
        return self.packs / nonce[:16]

    def dataset(self, dataset_id: int) -> Path:
        """Return the folder of a dataset."""
        return self.datasets / str(dataset_id)


def expand_user(path: str) -> Path:
    """Return a path with `~` filled in, or as it is where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def disk_error(error: OSError, path: Path) -> SlidepackError:
    """Return the coded error of a failed write below `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return SlidepackError(
            "DISK-FULL",
            "The disk of the data directory is full.",
            why=f"{path}: {error.strerror}",
            fix="Free some space, or move the data directory with SLIDEPACK_HOME.",
        )
    return SlidepackError(
        "DISK-UNWRITABLE",
        "The data directory cannot be written.",
        why=f"{path}: {error.strerror}",
        fix="Check its owner and rights, or choose another one with SLIDEPACK_HOME.",
    )
