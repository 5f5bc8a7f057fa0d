"""Swap, and the kernel's rules about promising memory."""

import re
from pathlib import Path
from typing import Literal

import msgspec

from slidepack.daemon.probe.drive_kind import DriveKind, drive_kind
from slidepack.daemon.probe.drives import mount_of, read_mounts, unescape
from slidepack.daemon.probe.kernel_files import read_fields, read_int

SwapKind = Literal[DriveKind, "zram"]

_NO_NUMBERS = "none"
"""A swap partition is found by its name alone."""


class SwapArea(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One swap partition or file."""

    path: str
    kind: SwapKind
    """`zram` is compressed main memory; else what the drive below is made of."""
    size_bytes: int
    used_bytes: int


class VirtualMemory(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="virtual_memory",
):
    """Where memory goes when it runs short."""

    swap: tuple[SwapArea, ...]
    strict_overcommit: bool
    """Whether the kernel refuses reservations beyond `commit_limit_bytes`."""
    commit_limit_bytes: int | None
    committed_bytes: int | None
    max_map_count: int | None
    """How many mappings one process may have."""


def read_virtual_memory(root: Path) -> VirtualMemory:
    """Read /proc/swaps and the `vm` settings.

    Raises:
        OSError: /proc/swaps or the mount table cannot be read.
        ValueError: a line of /proc/swaps is not as the kernel writes it.
    """
    proc = root / "proc"
    vm = proc / "sys" / "vm"
    lines = (proc / "swaps").read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    meminfo = read_fields(proc / "meminfo", ":")
    return VirtualMemory(
        swap=tuple(_area(root, line) for line in lines if line.strip()),
        strict_overcommit=read_int(vm / "overcommit_memory") == 2,
        commit_limit_bytes=_kib(meminfo.get("CommitLimit", "")),
        committed_bytes=_kib(meminfo.get("Committed_AS", "")),
        max_map_count=read_int(vm / "max_map_count"),
    )


def _area(root: Path, line: str) -> SwapArea:
    name, kind, size, used, *_ = line.split()
    path = unescape(name)
    return SwapArea(
        path=path,
        kind=_kind(root, path, is_file=kind == "file"),
        size_bytes=int(size) * 1024,
        used_bytes=int(used) * 1024,
    )


def _kind(root: Path, path: str, *, is_file: bool) -> SwapKind:
    if re.fullmatch(r"/dev/zram\d+", path):
        return "zram"
    if not is_file:
        return drive_kind(root, path, _NO_NUMBERS, "swap")
    mount = mount_of(Path(path), read_mounts(root))
    if mount is None:
        return "unknown"
    return drive_kind(root, mount.device, mount.numbers, mount.fs_type)


def _kib(text: str) -> int | None:
    number = text.removesuffix(" kB").strip()
    return int(number) * 1024 if number.isdigit() else None
