"""Whether this Linux runs inside Windows."""

from pathlib import Path
from typing import Literal

import msgspec

from slidepack.daemon.probe.kernel_files import read_text


class WslInfo(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="wsl",
):
    """The Windows Subsystem for Linux, or `no`."""

    version: Literal["no", "wsl1", "wsl2"]
    kernel: str
    """The kernel's release."""


def read_wsl(root: Path) -> WslInfo:
    """Tell WSL from the kernel's release, and a home-built WSL kernel from its interop door.

    Raises:
        OSError: the kernel's release cannot be read.
    """
    proc = root / "proc"
    release = (proc / "sys" / "kernel" / "osrelease").read_text(encoding="utf-8").strip()
    interop = proc / "sys" / "fs" / "binfmt_misc" / "WSLInterop"
    # WSL 1 emulates a 4.4 kernel named like 4.4.0-19041-Microsoft; WSL 2 runs a real one.
    if release.endswith("-Microsoft"):
        return WslInfo(version="wsl1", kernel=release)
    if "microsoft" in release.lower() or read_text(interop) is not None:
        return WslInfo(version="wsl2", kernel=release)
    return WslInfo(version="no", kernel=release)


def under_wsl(root: Path = Path("/")) -> bool:
    """Return whether Windows runs around this Linux; where the kernel says nothing, it does not."""
    try:
        return read_wsl(root).version != "no"
    except OSError:
        return False
