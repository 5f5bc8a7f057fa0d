"""Data files that are on the daemon's machine already: which of them may be read.

A path is followed to what it names, and that must be a file with content of its own: no device, no
pipe, nothing that the kernel makes up while it is read.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from slidepack.daemon.paths import expand_user
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import clip

__all__ = ["data_files", "open_data_file"]

_NOT_FILES: Final = tuple(map(Path, ("/proc", "/sys", "/dev", "/run")))
_ENDINGS: Final = frozenset(
    f".{name}"
    for name in ("jsonl", "json", "ndjson", "csv", "tsv", "parquet", "arrow", "txt", "md")
)
_COMPRESSED: Final = frozenset({".gz", ".zst"})


def data_files(text: str, most: int) -> list[Path]:
    """Return the data file that a path names, or those in the folder that it names.

    Of a folder its own data files count, by their endings; folders in it and hidden files do not.

    Args:
        text: an absolute path; `~` is the daemon's user.
        most: files of a folder, at most.

    Raises:
        SlidepackError: DATA-NOT-FOUND or DATA-PATH-REFUSED.
    """
    path = _resolved(text)
    if not path.is_dir():
        return [path]
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if _is_data(entry.name))
    except OSError as error:
        raise _unreadable(path, error) from error
    found = [_resolved(str(path / name)) for name in names]
    files = [file for file in found if file.is_file()]
    if not files:
        raise SlidepackError(
            "DATA-PATH-REFUSED",
            "There is no data file in this folder.",
            why=f"{clip(path, 200)} holds none whose name ends in {', '.join(sorted(_ENDINGS))}",
            fix="Name a file, or the folder that holds the files itself.",
        )
    if len(files) > most:
        raise SlidepackError(
            "DATA-PATH-REFUSED",
            "There are too many files in this folder.",
            why=f"{len(files)} of at most {most}",
            fix="Put them together, or name one of them.",
        )
    return files


def open_data_file(path: Path) -> BinaryIO:
    """Open a resolved path, and make sure that it is a plain file.

    Raises:
        SlidepackError: DATA-NOT-FOUND or DATA-PATH-REFUSED.
    """
    try:
        # A link that was put there since is not followed, and a pipe does not hold us up.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise _no_file(path, "it is no plain file")
    return file


def _resolved(text: str) -> Path:
    path = expand_user(text)
    if "\0" in text or not path.is_absolute():
        raise SlidepackError(
            "DATA-PATH-REFUSED",
            "This is no path of a file.",
            why=f"{clip(text, 200) or 'an empty text'} does not begin at the root",
            fix="Name it in full, as in /home/you/data.jsonl or ~/data.jsonl.",
        )
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    if any(found.is_relative_to(place) for place in _NOT_FILES):
        raise _no_file(found, "what is there is no file with content of its own")
    return found


def _is_data(name: str) -> bool:
    path = Path(name)
    if path.suffix.lower() in _COMPRESSED:
        path = path.with_suffix("")
    return path.suffix.lower() in _ENDINGS and not name.startswith(".")


def _no_file(path: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "DATA-PATH-REFUSED",
        "This cannot be a data file.",
        why=f"{clip(path, 200)}: {why}",
        fix="Name a file, or a folder with data files in it.",
    )


def _unreadable(path: Path, error: Exception) -> SlidepackError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return SlidepackError(
        "DATA-NOT-FOUND",
        "The data cannot be read.",
        why=f"{clip(path, 200)}: {reason}",
        fix="Check the path, and that the user of the daemon may read it.",
    )
