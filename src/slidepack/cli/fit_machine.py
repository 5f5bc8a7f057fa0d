"""The machine that `slidepack fit` is asked about: this one, or another that the options name."""

import math
import os
from typing import Final

import msgspec
import typer

from slidepack.daemon.doctor.cards import training_gpus
from slidepack.daemon.drive_wears import DriveWears
from slidepack.daemon.hardware import with_tier
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport, probe_hardware, settle
from slidepack.daemon.probe.tier import Tier
from slidepack.daemon.settings import data_home, load_settings
from slidepack.daemon.tier_drives import TierDrives
from slidepack.engine.memory_parts import NvmeRoom
from slidepack.engine.rates import Rates, rates_of, with_drives

__all__ = ["DriveOptions", "Host", "describe_machine", "measured_drives"]

_GB: Final = 1e9
_READ: Final = 2.5e9
_WRITE: Final = 1.5e9
"""Bytes a second of a common NVMe drive whose fast cache is full."""


class DriveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say of the drives; None is as this machine has it."""

    free_gb: float | None = None
    """Free for checkpoints, and for state, in 1e9 bytes."""
    read_gb: float | None = None
    """Rate of reading in 1e9 bytes a second."""
    write_gb: float | None = None
    both_gb: float | None = None
    """Of both together, while both go on; None is that of the faster way alone."""
    rated_tb: float | None = None
    """What they are rated to take in their life, in 1e12 bytes."""

    @property
    def as_here(self) -> bool:
        """Whether nothing is said of them."""
        return self == DriveOptions()


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that was asked about: this one, but for what the options say."""

    device: str
    card: str
    """Empty where the passes run on the CPU."""
    vram_bytes: int
    """Free."""
    ram_bytes: int
    disk_bytes: int | None
    """None where it is not known."""
    cpu_threads: int
    nvme: NvmeRoom | None
    """Drives for state that does not fit the RAM; None where they are not known."""


def describe_machine(
    vram: float | None, ram: float | None, drive: DriveOptions
) -> tuple[Host, Rates]:
    """Return this machine as it is now, changed by the options, and how fast it is.

    Args:
        vram: free VRAM in 1e9 bytes; 0 leaves every card out.
        ram: free RAM in 1e9 bytes.
        drive: what is said of the drives.
    """
    home, settings = data_home(os.environ), load_settings()
    report = with_tier(
        probe_hardware(home, software=False), TierDrives(home, settings, DriveWears())
    )
    gpu = next(iter(training_gpus(report)), None)
    if vram == 0 or (vram is None and settings.device == "cpu"):
        gpu, vram = None, 0.0
    free = (gpu.vram_free_bytes or gpu.vram_total_bytes or 0) if gpu else 0
    vram_bytes = free if vram is None else _bytes(vram)
    card = ""
    if vram_bytes:
        card = gpu.name if gpu else f"a card of {vram_bytes / _GB:.0f} GB"
    host = Host(
        device="cuda:0" if vram_bytes else "cpu",
        card=card,
        vram_bytes=vram_bytes,
        ram_bytes=_free_ram(report) if ram is None else _bytes(ram),
        disk_bytes=_free_disk(report) if drive.free_gb is None else _bytes(drive.free_gb),
        cpu_threads=_threads(report),
        nvme=_room(report, drive),
    )
    return host, _rates(host, gpu)


def measured_drives() -> NvmeRoom | None:
    """Return this machine's drives for state with measured rates, which takes a second or two."""
    drives = TierDrives(data_home(os.environ), load_settings(), DriveWears())
    tier = settle("tier", drives.measured)
    return None if isinstance(tier, ProbeProblem) else tier.room


def _room(report: HardwareReport, drive: DriveOptions) -> NvmeRoom | None:
    room = report.tier.room if isinstance(report.tier, Tier) else None
    if drive.free_gb is not None:
        room = NvmeRoom(
            folders=("an NVMe drive",),
            free_bytes=_bytes(drive.free_gb),
            read_bytes_per_second=_READ,
            write_bytes_per_second=_WRITE,
            measured=False,
        )
    if room is None:
        return None
    return msgspec.structs.replace(
        room,
        read_bytes_per_second=(drive.read_gb or room.read_bytes_per_second / _GB) * _GB,
        write_bytes_per_second=(drive.write_gb or room.write_bytes_per_second / _GB) * _GB,
        both_bytes_per_second=_both(room, drive),
        rated_write_bytes=drive.rated_tb * 1e12 if drive.rated_tb else room.rated_write_bytes,
        rated_source="as was said" if drive.rated_tb else room.rated_source,
    )


def _both(room: NvmeRoom, drive: DriveOptions) -> float:
    if drive.both_gb:
        return drive.both_gb * _GB
    return 0.0 if drive.read_gb or drive.write_gb else room.both_bytes_per_second


def _rates(host: Host, gpu: Gpu | None) -> Rates:
    rates = rates_of(
        host.card,
        cpu_threads=host.cpu_threads,
        # An idle card lowers its link.
        pcie_generation=gpu.pcie_generation_max or gpu.pcie_generation if gpu else None,
        pcie_width=gpu.pcie_width if gpu else None,
    )
    return with_drives(rates, host.nvme)


def _free_ram(report: HardwareReport) -> int:
    memory = report.memory
    if isinstance(memory, ProbeProblem):
        raise typer.BadParameter(f"{memory.what} {memory.why} Give the RAM with --ram.")
    limit = memory.cgroup_limit_bytes or memory.total_bytes
    return min(limit, memory.available_bytes)


def _free_disk(report: HardwareReport) -> int | None:
    if isinstance(report.drives, ProbeProblem):
        return None
    return next((d.free_bytes for d in report.drives.drives if d.holds_data_dir), None)


def _threads(report: HardwareReport) -> int:
    cpu = report.cpu
    if isinstance(cpu, ProbeProblem):
        return os.cpu_count() or 1
    return max(1, min(cpu.allowed_cores, cpu.physical_cores or cpu.allowed_cores))


def _bytes(gigabytes: float) -> int:
    if not math.isfinite(gigabytes):
        raise typer.BadParameter(f"{gigabytes} is no size of a memory")
    return int(gigabytes * _GB)
