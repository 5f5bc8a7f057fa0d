"""The drives that can hold models, checkpoints and swapped-out layers."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.probe.drive_kind import DriveKind, drive_kind

MAX_DRIVES: Final = 8

_LOCAL_TYPES: Final = frozenset(
    (
        "bcachefs",
        "btrfs",
        "exfat",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "ntfs",
        "ntfs3",
        "xfs",
        "zfs",
        "fuseblk",
    )
)
"""File systems worth offering. One that holds the data directory is shown whatever its type."""

_BOOT_MOUNTS: Final = ("/boot", "/efi", "/snap")


class Drive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One mounted file system."""

    mount: str
    device: str
    """As the kernel names it: `/dev/nvme0n1p2`, `pool/home`, `server:/export`."""
    fs_type: str
    kind: DriveKind
    total_bytes: int
    free_bytes: int
    """What an ordinary user may still write."""
    read_only: bool
    holds_data_dir: bool
    holds_home: bool


class Drives(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="drives",
):
    """At most `MAX_DRIVES` file systems; that of the data directory first, then home's."""

    drives: tuple[Drive, ...]


class Mount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the mount table."""

    mount: str
    device: str
    numbers: str
    """`major:minor` of the device."""
    fs_type: str
    read_only: bool


def disk_usage(mount: str) -> tuple[int, int]:
    """Return a file system's total bytes and those free to an ordinary user.

    Raises:
        OSError: the file system does not answer.
    """
    answer = os.statvfs(mount)
    return answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize


def read_drives(
    root: Path,
    data_dir: Path,
    home: Path,
    *,
    usage: Callable[[str], tuple[int, int]] = disk_usage,
) -> Drives:
    """List the real file systems, each device once.

    Args:
        root: the file system's root; holds `proc` and `sys`.
        data_dir: where runs are kept; it need not exist yet.
        home: the user's home directory.
        usage: total and free bytes of a mount point.

    Raises:
        OSError: the mount table cannot be read, or the data directory's drive does not answer.
    """
    mounts = read_mounts(root)
    data_mount = mount_of(data_dir, mounts)
    home_mount = mount_of(home, mounts)
    wanted = [mount for mount in (data_mount, home_mount) if mount is not None]
    wanted += [mounts[path] for path in sorted(mounts) if _is_offer(mounts[path])]
    drives: dict[str, Drive] = {}
    for mount in wanted:
        # A bind mount or a btrfs subvolume is the same space under a second name.
        if mount.device in drives or len(drives) == MAX_DRIVES:
            continue
        try:
            total, free = usage(mount.mount)
        except OSError:
            if mount is data_mount:
                raise
            continue
        drives[mount.device] = Drive(
            mount=mount.mount,
            device=mount.device,
            fs_type=mount.fs_type,
            kind=drive_kind(root, mount.device, mount.numbers, mount.fs_type),
            total_bytes=total,
            free_bytes=free,
            read_only=mount.read_only,
            holds_data_dir=data_mount is not None and mount.device == data_mount.device,
            holds_home=home_mount is not None and mount.device == home_mount.device,
        )
    return Drives(drives=tuple(drives.values()))


def read_mounts(root: Path) -> dict[str, Mount]:
    """Return the mounts by their mount point.

    Raises:
        OSError: the mount table cannot be read.
    """
    table = (root / "proc" / "self" / "mountinfo").read_text(encoding="utf-8", errors="replace")
    mounts = {}
    for line in table.splitlines():
        before, separator, after = line.partition(" - ")
        if not separator:
            continue
        _, _, numbers, _, mount, options, *_ = before.split(" ")
        fs_type, device, *_ = after.split(" ")
        # The last of several mounts on one point hides the others.
        mounts[unescape(mount)] = Mount(
            mount=unescape(mount),
            device=unescape(device),
            numbers=numbers,
            fs_type=fs_type,
            read_only="ro" in options.split(","),
        )
    return mounts


def unescape(text: str) -> str:
    """Return a path of a kernel table, where blanks are written as `\\040`."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def mount_of(path: Path, mounts: dict[str, Mount]) -> Mount | None:
    """Return the mount that a path is on, whether or not the path exists."""
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents):
        if str(folder) in mounts:
            return mounts[str(folder)]
    return None


def _is_offer(mount: Mount) -> bool:
    if mount.read_only or mount.mount.startswith(_BOOT_MOUNTS):
        return False
    return mount.fs_type in _LOCAL_TYPES
