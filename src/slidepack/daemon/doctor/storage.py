"""The data directory's drive: its room, its kind and its speed."""

from collections.abc import Iterator
from typing import Final

from slidepack.daemon.doctor.cards import training_gpus
from slidepack.daemon.doctor.finding import Finding, gib, short
from slidepack.daemon.probe.disk_speed import DiskSpeed, DiskUnmeasured
from slidepack.daemon.probe.drives import Drive, Drives
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.setup import SetupReport
from slidepack.daemon.probe.software import SoftwareInfo
from slidepack.daemon.probe.wsl import WslInfo

DISK_FLOOR_BYTES: Final = 10 * 10**9
"""Below this a checkpoint of a small model may not fit."""

SLOW_BYTES_PER_SECOND: Final = 150e6
"""What a spinning disk does at its best; every SSD does more."""

_EXAMPLE_BYTES: Final = 10 * 10**9
_EXAMPLE: Final = "10 GB of checkpoint or model"
_WINDOWS_TYPES: Final = ("9p", "drvfs")
_SLOW_KINDS: Final = {
    "hdd": "a spinning disk",
    "network": "a network drive",
    "memory": "memory",
}


def drive_findings(report: HardwareReport) -> Iterator[Finding]:
    """Judge the drive that holds the data directory."""
    if not isinstance(report.drives, Drives):
        return
    for drive in report.drives.drives:
        if drive.holds_data_dir:
            yield _room(drive)
            yield from _kind(drive, report)


def _place(drive: Drive) -> str:
    return f"{drive.mount} ({drive.device}, {drive.fs_type})"


def _room(drive: Drive) -> Finding:
    place = _place(drive)
    if drive.read_only:
        return Finding(
            level="problem",
            title="The data directory's drive cannot be written.",
            evidence=f"{place} is mounted read-only.",
            fix="Set SLIDEPACK_HOME to a folder on another drive.",
        )
    if drive.free_bytes < DISK_FLOOR_BYTES:
        return Finding(
            level="problem",
            title="The data directory's drive is nearly full.",
            evidence=f"{gib(drive.free_bytes)} free on {place}.",
            fix="Free some space, or set SLIDEPACK_HOME to a folder on another drive.",
            action="free-room",
        )
    return Finding(
        level="ok",
        title="Room for runs",
        evidence=f"{gib(drive.free_bytes)} free on {place}.",
        fix="",
    )


def _kind(drive: Drive, report: HardwareReport) -> Iterator[Finding]:
    wsl = report.wsl
    if isinstance(wsl, WslInfo) and wsl.version != "no" and drive.fs_type in _WINDOWS_TYPES:
        yield Finding(
            level="note",
            title="The data directory is on a Windows drive.",
            evidence=f"{_place(drive)}: every file passes from Linux to Windows and back.",
            fix="Set SLIDEPACK_HOME to a folder inside Linux, such as ~/slidepack.",
        )
    elif drive.kind in _SLOW_KINDS:
        yield Finding(
            level="note",
            title=f"The data directory is on {_SLOW_KINDS[drive.kind]}.",
            evidence=f"{_place(drive)}.",
            fix="Set SLIDEPACK_HOME to a folder on an SSD: models and checkpoints are large.",
        )


def speed_findings(report: HardwareReport, setup: SetupReport) -> Iterator[Finding]:
    """Judge what was measured, or say why nothing was."""
    speed = setup.disk_speed
    if not isinstance(speed, DiskSpeed) and _is_told(report):
        return
    if isinstance(speed, DiskUnmeasured):
        yield Finding(
            level="note",
            title="The disk's speed was not measured.",
            evidence=f"{speed.why}.",
            fix="Free some space (10 GB at least), then run doctor again.",
        )
    elif isinstance(speed, DiskSpeed):
        yield _speed(speed)
    else:
        # Nothing can be kept where this file could not be.
        yield Finding(level="problem", title=speed.what, evidence=speed.why, fix=speed.fix)


def _is_told(report: HardwareReport) -> bool:
    drives = report.drives.drives if isinstance(report.drives, Drives) else ()
    return any(drive.holds_data_dir and _room(drive).level == "problem" for drive in drives)


def _speed(speed: DiskSpeed) -> Finding:
    write, read = speed.write_bytes_per_second, speed.read_bytes_per_second
    cached = "" if speed.direct else "; with the page cache, so reads may look too fast"
    evidence = (
        f"{speed.folder}: writes {write / 1e6:.0f} MB/s, reads {read / 1e6:.0f} MB/s "
        f"({speed.measured_bytes / 1e6:.0f} MB each, "
        f"{speed.both_bytes_per_second / 1e6:.0f} MB/s both ways at once{cached}). "
        f"{_EXAMPLE} takes about "
        f"{_seconds(_EXAMPLE_BYTES / write)} to write and {_seconds(_EXAMPLE_BYTES / read)} to "
        "read."
    )
    if min(write, read) >= SLOW_BYTES_PER_SECOND:
        return Finding(level="ok", title="Disk speed", evidence=evidence, fix="")
    return Finding(
        level="note",
        title="The data directory's disk is slow.",
        evidence=f"{evidence} Steps do not wait for it: only checkpoints, starts and yielding the "
        "card take longer.",
        fix="Set SLIDEPACK_HOME to a folder on an NVMe SSD or SATA SSD; if it is one, look for "
        "another program that writes (`iotop`).",
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def gds_findings(report: HardwareReport, setup: SetupReport) -> Iterator[Finding]:
    """Tell whether GPUDirect Storage is there; nothing depends on it."""
    software = report.software
    nvidia = any(gpu.vendor == "nvidia" for gpu in training_gpus(report))
    if not nvidia or not isinstance(software, SoftwareInfo):
        return
    kvikio = software.kvikio
    module = "loaded" if setup.nvidia_fs else "not loaded"
    if kvikio.version and kvikio.gds_available:
        yield Finding(
            level="ok",
            title="GPUDirect Storage works.",
            evidence=f"kvikio {kvikio.version}, kernel module nvidia-fs {module}.",
            fix="",
        )
    else:
        found = f"kvikio {kvikio.version}" if kvikio.version else "kvikio does not import"
        why = f" ({short(kvikio.problem)})" if kvikio.problem else ""
        yield Finding(
            level="ok",
            title="GPUDirect Storage is not in use, and nothing is lost: files go through main "
            "memory.",
            evidence=f"{found}{why}; kernel module nvidia-fs {module}. GeForce cards and WSL do "
            "not offer it.",
            fix="",
        )
