"""The folders of exports; every name in them is made by us."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from slidepack.daemon.supervisor.discarding import GONE

__all__ = ["ExportFolders"]

_FILES: Final = "files"
_EVIDENCE: Final = (f"{_FILES}.differs-", "export.log")
"""What stays of an export that failed."""


class ExportFolders:
    """A folder for each export, named by its id; what is made is in the folder `files` of it."""

    def __init__(self, root: Path) -> None:
        """Name the folder of all exports."""
        self.root = root

    def home(self, export_id: int) -> Path:
        """Return an export's own folder."""
        return self.root / str(export_id)

    def files(self, export_id: int) -> Path:
        """Return the folder that an export is made in."""
        return self.home(export_id) / _FILES

    def clear(self, export_id: int) -> None:
        """Remove all that an exporter left; what refuses stays until the export is deleted."""
        shutil.rmtree(self.home(export_id), ignore_errors=True)

    def keep_evidence(self, export_id: int) -> None:
        """Remove what is of no use of an export that failed: all but its log and what differs."""
        for path in _listed(self.home(export_id)):
            if path.name.startswith(_EVIDENCE):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def num_bytes(self, export_id: int) -> int:
        """Return the size of all files of an export."""
        found = self.home(export_id).rglob("*")
        files = (path for path in found if path.is_file() and not path.is_symlink())
        return sum(path.stat().st_size for path in files)

    def strays(self, known: Iterable[int]) -> list[Path]:
        """Return the folders of exports that are not known, and those that were put aside."""
        names = {str(export_id) for export_id in known}
        return [
            path
            for path in _listed(self.root)
            if path.name.endswith(GONE) or (path.name.isdecimal() and path.name not in names)
        ]


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
