"""The machine in words, for the command line, the page and a bug report. Pure."""

from slidepack.daemon.doctor.finding import gib
from slidepack.daemon.probe.cpu import CpuInfo
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.memory import MemoryInfo
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.software import SoftwareInfo
from slidepack.daemon.probe.wsl import WslInfo

__all__ = ["machine_facts", "pcie_link"]

_UNKNOWN = "n/a"


def machine_facts(report: HardwareReport) -> tuple[tuple[str, str], ...]:
    """Return names and values of what the machine is; a value may have two lines, or none."""
    return (
        ("CPU", _cpu(report.cpu)),
        ("Memory", _memory(report.memory)),
        ("System", _system(report.wsl)),
        ("Software", _software(report.software)),
    )


def pcie_link(gpu: Gpu) -> str:
    """Return a card's link, as `4.0 x16`."""
    generation = gpu.pcie_generation_max or gpu.pcie_generation
    width = gpu.pcie_width or gpu.pcie_width_max
    if generation is None or width is None:
        return _UNKNOWN
    return f"{generation}.0 x{width}"


def _cpu(cpu: CpuInfo | ProbeProblem) -> str:
    if isinstance(cpu, ProbeProblem):
        return cpu.what
    parts = [f"{cpu.model}, {cpu.physical_cores} cores, {cpu.logical_cores} threads"]
    if cpu.allowed_cores < cpu.logical_cores:
        parts.append(f"{cpu.allowed_cores} allowed")
    if cpu.quota_cores is not None:
        parts.append(f"{cpu.quota_cores:g} cores' worth of time")
    return f"{', '.join(parts)}\n{' '.join(cpu.extensions)}".strip()


def _memory(memory: MemoryInfo | ProbeProblem) -> str:
    if isinstance(memory, ProbeProblem):
        return memory.what
    locked = "no limit" if memory.memlock_bytes is None else gib(memory.memlock_bytes)
    swap = gib(memory.swap_total_bytes) if memory.swap_total_bytes else "none"
    return (
        f"{gib(memory.available_bytes)} available of {gib(memory.total_bytes)}; "
        f"swap: {swap}; lockable: {locked}"
    )


def _system(wsl: WslInfo | ProbeProblem) -> str:
    if isinstance(wsl, ProbeProblem):
        return wsl.what
    inside = {"no": "", "wsl1": ", WSL 1 on Windows", "wsl2": ", WSL 2 on Windows"}
    return f"Linux {wsl.kernel}{inside[wsl.version]}"


def _software(software: SoftwareInfo | ProbeProblem | None) -> str:
    if software is None:
        return ""
    if isinstance(software, ProbeProblem):
        return software.what
    torch = software.torch
    build = f" ({torch.build} {torch.build_version}".rstrip() + ")" if torch.version else ""
    kvikio = software.kvikio
    gds = "with" if kvikio.gds_available else "without"
    return ", ".join(
        (
            f"Python {software.python}",
            f"torch {torch.version or 'missing'}{build}",
            f"Triton {software.triton.version or 'missing'}",
            f"kvikio {kvikio.version} {gds} GPUDirect Storage" if kvikio.version else "no kvikio",
        )
    )
