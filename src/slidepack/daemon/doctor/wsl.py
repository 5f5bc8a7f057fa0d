"""Linux inside Windows."""

from collections.abc import Iterator

from slidepack.daemon.doctor.finding import Finding, gib
from slidepack.daemon.probe.memory import MemoryInfo
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.setup import SetupReport
from slidepack.daemon.probe.wsl import WslInfo


def wsl_findings(report: HardwareReport) -> Iterator[Finding]:
    """Judge the version of WSL."""
    if isinstance(report.wsl, WslInfo) and report.wsl.version == "wsl1":
        yield Finding(
            level="problem",
            title="WSL 1 cannot reach a graphics card.",
            evidence=f"Kernel {report.wsl.kernel}.",
            fix="In Windows: wsl --set-version <distribution> 2",
        )


def wsl_memory_findings(report: HardwareReport, setup: SetupReport) -> Iterator[Finding]:
    """Tell how much of Windows' memory WSL 2 has, and what decides it."""
    wsl, memory = report.wsl, report.memory
    if not isinstance(wsl, WslInfo) or wsl.version != "wsl2" or not isinstance(memory, MemoryInfo):
        return
    total = gib(memory.total_bytes)
    decided = [config for config in setup.wsl_configs if config.memory]
    if decided:
        listed = ", ".join(f"{config.path}: memory={config.memory}" for config in decided)
        yield Finding(level="ok", title="Memory of WSL 2", evidence=f"{total}; {listed}.", fix="")
        return
    yield Finding(
        level="note",
        title="WSL has only part of Windows' memory.",
        evidence=f"{total}; no .wslconfig decides it, and WSL then takes half. Layers that do not "
        "fit into VRAM live there.",
        fix=r"In Windows, write `[wsl2]` and below it `memory=24GB` (leave Windows 8 GB) into "
        r"%UserProfile%\.wslconfig, then run `wsl --shutdown`.",
    )
