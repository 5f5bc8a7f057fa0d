"""The machine that `slidepack fit` is asked about: this one, or another that the options name."""

import math
import os
from typing import Final

import msgspec
import typer

from slidepack.daemon.doctor.cards import training_gpus
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport, probe_hardware
from slidepack.daemon.settings import data_home, load_settings
from slidepack.engine.rates import Rates, rates_of

__all__ = ["Host", "describe_machine"]

_GB: Final = 1e9


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


def describe_machine(
    vram: float | None, ram: float | None, nvme: float | None
) -> tuple[Host, Rates]:
    """Return this machine as it is now, changed by the options, and how fast it is.

    Args:
        vram: free VRAM in 1e9 bytes; 0 leaves every card out.
        ram: free RAM in 1e9 bytes.
        nvme: free disk in 1e9 bytes.
    """
    report = probe_hardware(data_home(os.environ), software=False)
    gpu = next(iter(training_gpus(report)), None)
    if vram == 0 or (vram is None and load_settings().device == "cpu"):
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
        disk_bytes=_free_disk(report) if nvme is None else _bytes(nvme),
        cpu_threads=_threads(report),
    )
    return host, _rates(host, gpu)


def _rates(host: Host, gpu: Gpu | None) -> Rates:
    return rates_of(
        host.card,
        cpu_threads=host.cpu_threads,
        # An idle card lowers its link.
        pcie_generation=gpu.pcie_generation_max or gpu.pcie_generation if gpu else None,
        pcie_width=gpu.pcie_width if gpu else None,
    )


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
