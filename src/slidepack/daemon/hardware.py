"""The current state of the hardware, and what of it a run may use."""

import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.problem import ProbeFailure, ProbeProblem
from slidepack.daemon.probe.report import HardwareReport, probe_hardware
from slidepack.daemon.probe.software import (
    SoftwareInfo,
    TorchDevice,
    read_software,
    torch_report_command,
)
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.memory import Machine

_FRESH_SECONDS: Final = 2.0


class HardwareMonitor:
    """Probes on demand, at most once in two seconds; asks torch once, in the background."""

    def __init__(self, data_dir: Path) -> None:
        """Name the directory whose drive matters; nothing is probed yet."""
        self._data_dir = data_dir
        self._lock = threading.Lock()
        self._probed_at = float("-inf")
        self._fast: HardwareReport | None = None
        self._software: SoftwareInfo | ProbeProblem | None = None

    def probe_software(self) -> None:
        """Ask torch what it can use; takes seconds, so the caller is a background thread."""
        try:
            found: SoftwareInfo | ProbeProblem = read_software(torch_report_command())
        except ProbeFailure as failure:
            found = ProbeProblem(
                item="software", what=failure.what, why=failure.why, fix=failure.fix
            )
        with self._lock:
            self._software = found

    def report(self) -> HardwareReport:
        """Return the hardware, at most two seconds old; `software` is None until torch answered."""
        with self._lock:
            now = time.monotonic()
            if self._fast is None or now - self._probed_at > _FRESH_SECONDS:
                self._fast = probe_hardware(self._data_dir, software=False)
                self._probed_at = now
            return msgspec.structs.replace(self._fast, software=self._software)


def machine_now(report: HardwareReport, *, whole: bool) -> Machine | None:
    """Return what a run may use, or None while torch has not answered yet.

    Args:
        report: the hardware.
        whole: count all of the memory instead of what is free now.

    Raises:
        SlidepackError: GPU-UNUSABLE where torch cannot be asked, RAM-TOO-SMALL where the RAM
            cannot be read.
    """
    software = report.software
    if software is None:
        return None
    if isinstance(software, ProbeProblem):
        raise SlidepackError("GPU-UNUSABLE", software.what, why=software.why, fix=software.fix)
    memory, cpu = report.memory, report.cpu
    if isinstance(memory, ProbeProblem) or isinstance(cpu, ProbeProblem):
        problem = memory if isinstance(memory, ProbeProblem) else cpu
        assert isinstance(problem, ProbeProblem)
        raise SlidepackError("RAM-TOO-SMALL", problem.what, why=problem.why, fix=problem.fix)
    limit = memory.cgroup_limit_bytes or memory.total_bytes
    ram = min(limit, memory.total_bytes) if whole else min(limit, memory.available_bytes)
    threads = max(1, min(cpu.allowed_cores, cpu.physical_cores or cpu.allowed_cores))
    device = next((d for d in software.torch.devices if d.supported), None)
    return Machine(
        device="cpu" if device is None else f"cuda:{device.index}",
        device_free_bytes=0 if device is None else _vram(device, report.gpus, whole=whole),
        ram_available_bytes=ram,
        cpu_threads=threads,
    )


def _vram(device: TorchDevice, gpus: tuple[Gpu, ...], *, whole: bool) -> int:
    """Return the VRAM of torch's device, as the driver shows it now."""
    if whole:
        return device.total_bytes or 0
    for gpu in gpus:
        same_uuid = bool(device.uuid) and gpu.uuid == device.uuid
        same_slot = bool(device.pci_address) and gpu.pci_address == device.pci_address
        if (same_uuid or same_slot) and gpu.vram_free_bytes is not None:
            return gpu.vram_free_bytes
    return device.free_bytes or 0
