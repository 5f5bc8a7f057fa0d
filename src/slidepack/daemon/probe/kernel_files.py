"""The one-value files of /proc and /sys, where absence is an answer and not an error."""

import os
from pathlib import Path


def read_text(path: Path) -> str | None:
    """Return the file's text without outer white space; None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Return the decimal or `0x` integer in the file; None where there is none."""
    text = read_text(path)
    try:
        return None if text is None else int(text, 0)
    except ValueError:
        return None


def read_fields(path: Path, separator: str) -> dict[str, str]:
    """Return the file's `key<separator>value` lines, the first of each key; empty if unreadable."""
    fields: dict[str, str] = {}
    for line in (read_text(path) or "").splitlines():
        key, found, value = line.partition(separator)
        if found:
            fields.setdefault(key.strip(), value.strip())
    return fields


def list_names(folder: Path) -> list[str]:
    """Return the sorted names in a folder; empty where it cannot be listed."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
