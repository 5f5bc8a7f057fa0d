"""Puts rows into the tile table's file; whatever else is in it stays as it is, byte for byte."""

import errno
import importlib.resources
import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import write_atomic

__all__ = ["check_writable", "rendered", "rewritten", "table_path", "write_rows"]

Rows = Mapping[str, Mapping[str, int | str]]
"""Sizes and `measured` by operation."""

_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_HEADER: Final = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?\s*")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")


def table_path() -> Path:
    """Return the file of the installed package.

    Raises:
        SlidepackError: DISK-UNWRITABLE, where the package is not a folder.
    """
    path = importlib.resources.files("slidepack.kernels") / "tile_table.toml"
    if not isinstance(path, Path):
        raise _unwritable(f"{path} is not a file")
    return path


def check_writable(path: Path) -> None:
    """Find out before a measurement what would make `write_rows` fail after it.

    Raises:
        SlidepackError: DISK-UNWRITABLE.
    """
    for needed in (path.parent, path):
        if not os.access(needed, os.W_OK):
            raise _unwritable(f"{needed} is not writable")


def write_rows(path: Path, device_class: str, rows: Rows) -> None:
    """Replace or append a device class's tables in the file.

    Raises:
        SlidepackError: DISK-UNWRITABLE or DISK-FULL; the file is as it was.
    """
    try:
        old = path.read_bytes()
        new = rewritten(old.decode(), device_class, rows).encode()
        if new == old:
            return
        mode = stat.S_IMODE(path.stat().st_mode)
        write_atomic(path, new)
        path.chmod(mode)
    except ValueError as error:
        raise _unwritable(f"{path}: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise SlidepackError(
                "DISK-FULL",
                "The disk of the tile table is full.",
                why=f"{path}: {error.strerror}",
                fix="Free some space, then run the command again.",
            ) from error
        raise _unwritable(f"{path}: {error.strerror}") from error


def rewritten(text: str, device_class: str, rows: Rows) -> str:
    """Return the file's text with a device class's tables replaced or appended.

    Raises:
        ValueError: the text is no TOML, or in a form that this does not replace.
    """
    before = tomllib.loads(text)
    rows = {operation: _printable(row) for operation, row in rows.items()}
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = _LINE.findall(text)
    for operation, row in rows.items():
        name = f"{device_class}.{operation}"
        tables = _tables(lines)
        new = {key: f"{key} = {_value(value)}{ending}" for key, value in row.items()}
        if name in tables:
            first, last = tables[name]
            lines[first:last] = _replaced(lines[first:last], new)
        else:
            kin = (last for other, (_, last) in tables.items() if _is_of(other, device_class))
            at = max(kin, default=len(lines))
            lines[at:at] = [ending, f"[{name}]{ending}", *new.values()]
    # The file's last line may have had no end, and may now be followed by others.
    ended = [line if line.endswith("\n") else line + ending for line in lines[:-1]]
    result = "".join((*ended, *lines[-1:]))
    after = before | {device_class: before.get(device_class, {}) | rows}
    if tomllib.loads(result) != after:
        raise ValueError(f"the tables of {device_class} are in a form that cannot be replaced")
    return result


def rendered(device_class: str, rows: Rows) -> str:
    """Return a device class's tables as TOML."""
    return rewritten("", device_class, rows).strip() + "\n"


def _tables(lines: list[str]) -> dict[str, tuple[int, int]]:
    """Return the lines of each table: from below its header to below its last key."""
    found: dict[str, tuple[int, int]] = {}
    name = None
    for number, line in enumerate(lines):
        if header := _HEADER.fullmatch(line):
            name = header[1].strip()
            found[name] = (number + 1, number + 1)
        elif name is not None and _KEY.match(line):
            found[name] = (found[name][0], number + 1)
    return found


def _replaced(lines: list[str], new: dict[str, str]) -> list[str]:
    """Return a table's lines with new values, its comments where they were."""
    pending = dict(new)
    kept = []
    for line in lines:
        key = _KEY.match(line)
        if key is None:
            kept.append(line)
        elif key[1] in pending:
            kept.append(pending.pop(key[1]))
    return [*kept, *pending.values()]


def _is_of(table: str, device_class: str) -> bool:
    return table.partition(".")[0] == device_class


def _printable(row: Mapping[str, int | str]) -> dict[str, int | str]:
    return {
        key: "".join(sign if sign.isprintable() else "?" for sign in value)
        if isinstance(value, str)
        else value
        for key, value in row.items()
    }


def _value(value: int | str) -> str:
    # A JSON string of printable signs is a basic string of TOML.
    return json.dumps(value, ensure_ascii=False)


def _unwritable(why: str) -> SlidepackError:
    return SlidepackError(
        "DISK-UNWRITABLE",
        "The tile table cannot be written.",
        why=why,
        fix="Run the command without --write, and put its output into the file yourself.",
    )
