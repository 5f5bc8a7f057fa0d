"""What a file system's device is made of."""

from pathlib import Path
from typing import Final, Literal

from slidepack.daemon.probe.kernel_files import list_names, read_int, read_text

DriveKind = Literal["nvme", "ssd", "hdd", "network", "memory", "unknown"]

_NETWORK_TYPES: Final = frozenset(
    ("9p", "afs", "ceph", "cifs", "drvfs", "fuse.sshfs", "nfs", "nfs4", "smb3")
)
_MEMORY_TYPES: Final = frozenset(("tmpfs", "ramfs"))
_VIRTUAL_VENDORS: Final = ("msft", "qemu", "vmware", "vbox")
_SLOWEST_FIRST: Final[tuple[DriveKind, ...]] = ("unknown", "hdd", "ssd", "nvme")


def drive_kind(root: Path, device: str, numbers: str, fs_type: str) -> DriveKind:
    """Tell the kind of drive below a file system; of several drives, the slowest.

    Args:
        root: the file system's root; holds `sys`.
        device: the mount's source, such as `/dev/nvme0n1p2`.
        numbers: the mount's `major:minor`, which for btrfs and zfs name no block device.
        fs_type: the file system's type.
    """
    if fs_type in _NETWORK_TYPES:
        return "network"
    if fs_type in _MEMORY_TYPES:
        return "memory"
    kinds = [kind_of_disk(disk) for disk in disks_below(root, device, numbers)]
    return min(kinds, key=_SLOWEST_FIRST.index, default="unknown")


def disks_below(root: Path, device: str, numbers: str) -> list[Path]:
    """Return the drives that do the work below a file system, as folders of `sys`.

    Args:
        root: the file system's root; holds `sys`.
        device: the mount's source.
        numbers: the mount's `major:minor`.
    """
    block = root / "sys" / "dev" / "block" / numbers
    if not block.exists():
        block = root / "sys" / "class" / "block" / _kernel_name(root, device)
    return _disks_of(root, block.resolve()) if block.exists() else []


def _kernel_name(root: Path, device: str) -> str:
    name = device.rpartition("/")[2]
    if device.startswith("/dev/mapper/"):
        blocks = root / "sys" / "class" / "block"
        for candidate in list_names(blocks):
            if read_text(blocks / candidate / "dm" / "name") == name:
                return candidate
    return name


def _disks_of(root: Path, block: Path) -> list[Path]:
    if (block / "partition").exists():
        return _disks_of(root, block.parent)
    below = list_names(block / "slaves")
    if not below:
        return [block]
    # Encryption, LVM and RAID stack a virtual device on the drives that do the work.
    classes = root / "sys" / "class" / "block"
    return [disk for name in below for disk in _disks_of(root, (classes / name).resolve())]


def kind_of_disk(block: Path) -> DriveKind:
    """Tell the kind of one drive by its folder in `sys`."""
    if block.name.startswith("nvme"):
        return "nvme"
    vendor = (read_text(block / "device" / "vendor") or "").lower()
    # Hypervisors call their disks rotating, whatever lies below.
    if block.name.startswith("vd") or vendor.startswith(_VIRTUAL_VENDORS):
        return "unknown"
    rotational = read_int(block / "queue" / "rotational")
    if rotational is None:
        return "unknown"
    return "hdd" if rotational else "ssd"
