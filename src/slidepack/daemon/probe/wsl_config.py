"""What Windows' side says about the memory of WSL 2."""

from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.probe.kernel_files import list_names, read_text

_DEFAULT_MOUNT: Final = "/mnt/"


class WslConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One user's `.wslconfig`."""

    path: str
    memory: str
    """As written: `16GB`; empty where it is not set."""
    swap: str


def read_wsl_configs(root: Path) -> tuple[WslConfig, ...]:
    """Return the `.wslconfig` of every Windows user that has one.

    WSL does not tell which of them started it, and most machines have one.
    """
    automount = _section(root / "etc" / "wsl.conf", "automount").get("root", _DEFAULT_MOUNT)
    users = root / automount.strip("/") / "c" / "Users"
    found = []
    for user in list_names(users):
        path = users / user / ".wslconfig"
        if path.is_file():
            values = _section(path, "wsl2")
            found.append(
                WslConfig(
                    path=f"/{path.relative_to(root)}",
                    memory=values.get("memory", ""),
                    swap=values.get("swap", ""),
                )
            )
    return tuple(found)


def _section(path: Path, wanted: str) -> dict[str, str]:
    """Return the keys of a section, in lower case; Windows' editors put a mark in front."""
    values: dict[str, str] = {}
    section = ""
    for line in (read_text(path) or "").lstrip("\ufeff").splitlines():
        text = line.split("#", 1)[0].strip()
        if text.startswith("["):
            section = text.strip("[]").strip().lower()
        elif section == wanted and "=" in text:
            key, _, value = text.partition("=")
            values[key.strip().lower()] = value.strip().strip('"')
    return values
