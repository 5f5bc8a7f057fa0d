"""The drives that training state may lie on: what they are, what is free, how worn they are."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, Literal

import msgspec

from slidepack.daemon.probe.disk_speed import DiskSpeed
from slidepack.daemon.probe.drive_kind import DriveKind, disks_below, drive_kind
from slidepack.daemon.probe.drives import Mount, disk_usage, mount_of, read_mounts
from slidepack.daemon.probe.endurance import DriveWear
from slidepack.engine.memory_parts import NvmeRoom

__all__ = ["Tier", "links_possible", "read_tier"]

_RATES: Final[Mapping[DriveKind, tuple[float, float]]] = {
    "nvme": (2.5e9, 1.5e9),
    "ssd": (0.5e9, 0.4e9),
}
"""Bytes a second read and written by common drives whose fast cache is full."""
_OTHER_RATES: Final = (0.15e9, 0.15e9)
_NAMES: Final[Mapping[DriveKind, str]] = {
    "hdd": "a rotating disk",
    "network": "a network drive",
    "memory": "the main memory itself",
    "unknown": "a drive of a kind that is not known",
}


class Tier(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="tier",
):
    """What a full fine-tuning may use of the drives."""

    room: NvmeRoom
    wear: tuple[DriveWear, ...]
    """Of the drives below its folders, each once."""

    def words(self) -> str:
        """Return how worn the drives are, in a line; empty where nothing is known of it."""
        said = []
        for drive in self.wear:
            parts = []
            if drive.used_share is not None:
                parts.append(f"{drive.used_share:.0%} of its life used")
            if drive.written_bytes is not None:
                parts.append(f"{drive.written_bytes / 1e12:.1f} TB written")
            if drive.rated_write_bytes is not None:
                source = "; ".join(filter(None, (drive.rated_source, drive.problem)))
                parts.append(f"takes about {drive.rated_write_bytes / 1e12:.0f} TB ({source})")
            if parts:
                said.append(f"{drive.model or drive.disk}: {', '.join(parts)}")
        return "; ".join(said)


def read_tier(
    root: Path,
    data_dir: Path,
    folders: Sequence[Path],
    use: Literal["auto", "on", "off"],
    *,
    wear_of: Callable[[Path], DriveWear],
    speeds: Mapping[Path, DiskSpeed],
    usage: Callable[[str], tuple[int, int]] = disk_usage,
) -> Tier:
    """Look at the drives below some folders, which need not exist yet.

    Args:
        root: the file system's root; holds `proc` and `sys`.
        data_dir: where checkpoints are kept.
        folders: at least one.
        use: the setting `nvme`.
        wear_of: reads a drive's wear, by its folder in `sys`.
        speeds: measured rates, by folder.
        usage: total and free bytes of a mount point.

    Raises:
        OSError: the mount table cannot be read, or a drive does not answer.
    """
    mounts = read_mounts(root)
    on = {folder: mount_of(folder, mounts) for folder in folders}
    kinds = {folder: _kind(root, mount) for folder, mount in on.items()}
    below = {folder: _disks(root, mount) for folder, mount in on.items()}
    disks = list(dict.fromkeys(chain.from_iterable(below.values())))
    wear = [wear_of(disk) for disk in disks]
    reads, writes, both = zip(
        *(_rates(kinds[folder], speeds.get(folder)) for folder in folders), strict=True
    )
    # Where no drive is known, a file system is taken for one.
    drives = [below[folder] or on[folder] or folder for folder in folders]
    rated, source, written = _life(wear, _shares(disks, list(below.values())))
    room = NvmeRoom(
        folders=tuple(map(str, folders)),
        free_bytes=_free(on, usage),
        linked=links_possible(data_dir, folders, mounts),
        read_bytes_per_second=_striped(reads, drives),
        write_bytes_per_second=_striped(writes, drives),
        both_bytes_per_second=_striped(both, drives),
        measured=all(folder in speeds for folder in folders),
        rated_write_bytes=rated,
        rated_source=source,
        written_bytes=written,
        refused=_refused(use, on, kinds),
    )
    return Tier(room=room, wear=tuple(wear))


def links_possible(data_dir: Path, folders: Sequence[Path], mounts: dict[str, Mount]) -> bool:
    """Return whether files in these folders may have links in the data directory.

    Two mounts of one file system make none between them. A worker tries before it counts on it.
    """
    here = mount_of(data_dir, mounts)
    return here is not None and all(mount_of(folder, mounts) == here for folder in folders)


def _disks(root: Path, mount: Mount | None) -> tuple[Path, ...]:
    return () if mount is None else tuple(disks_below(root, mount.device, mount.numbers))


def _striped(rates: Sequence[float], drives: Sequence[object]) -> float:
    """Return the rate of stripes over folders, which wait for the slowest.

    Folders of one drive have its rate between them.
    """
    shares = (rate / drives.count(drive) for rate, drive in zip(rates, drives, strict=True))
    return len(rates) * min(shares)


def _kind(root: Path, mount: Mount | None) -> DriveKind:
    if mount is None:
        return "unknown"
    return drive_kind(root, mount.device, mount.numbers, mount.fs_type)


def _rates(kind: DriveKind, speed: DiskSpeed | None) -> tuple[float, float, float]:
    """Return bytes a second read, written, and both ways together."""
    if speed is None:
        read, write = _RATES.get(kind, _OTHER_RATES)
        return read, write, max(read, write)
    return (
        speed.read_bytes_per_second,
        speed.write_bytes_per_second,
        speed.both_bytes_per_second,
    )


def _free(on: Mapping[Path, Mount | None], usage: Callable[[str], tuple[int, int]]) -> int:
    """Return the bytes that files striped over the folders may take in all."""
    places = [mount.mount if mount else str(folder) for folder, mount in on.items()]
    return len(places) * min(usage(place)[1] // places.count(place) for place in places)


def _shares(disks: Sequence[Path], below: Sequence[tuple[Path, ...]]) -> list[float]:
    """Return the part of all that is written which each drive takes.

    Where several drives are below one folder, each may have to take all that goes there.
    """
    return [sum(disk in some for some in below) / len(below) for disk in disks]


def _life(
    wear: Sequence[DriveWear], shares: Sequence[float]
) -> tuple[float | None, str, float | None]:
    """Return what all drives take, why, and what they have taken: as the one that ends first."""
    lives = []
    for drive, share in zip(wear, shares, strict=True):
        if drive.rated_write_bytes is None:
            return None, "", None
        taken = drive.written_bytes
        left = (drive.rated_write_bytes - (taken or 0)) / share
        written = None if taken is None else taken / share
        lives.append((left, drive.rated_write_bytes / share, drive.rated_source, written))
    return min(lives, key=lambda life: life[0])[1:] if lives else (None, "", None)


def _refused(
    use: Literal["auto", "on", "off"],
    on: Mapping[Path, Mount | None],
    kinds: Mapping[Path, DriveKind],
) -> str:
    if use == "off":
        return 'the setting nvme is "off"'
    for folder, mount in on.items():
        if mount is not None and mount.read_only:
            return f"{folder} is on a file system that is read-only"
        if kinds[folder] not in _RATES and use == "auto":
            return (
                f"{folder} is on {_NAMES[kinds[folder]]}; name folders on an NVMe drive in the "
                'setting nvme_folders, or set nvme = "on"'
            )
    return ""
