"""NVIDIA cards, through NVML."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
import pynvml

from slidepack.daemon.probe.gpu import Gpu, GpuProcess
from slidepack.daemon.probe.pci import NVIDIA_VENDOR_ID, display_controllers
from slidepack.daemon.probe.problem import ProbeFailure
from slidepack.daemon.probe.processes import process_name

T = TypeVar("T")

_TEMPERATURE_GPU: Final = 0
"""NVML_TEMPERATURE_GPU, the sensor on the die."""

_RECENT_MICROSECONDS: Final = 2_000_000
"""How far back the GPU time of processes is asked for."""

_REFUSALS: Final = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError)
"""What a query raises: a refusal, a driver older than the call, a name that is no UTF-8."""


class Nvml(Protocol):
    """The part of the `pynvml` module that the probe calls."""

    nvmlInit: Callable[[], object]
    nvmlShutdown: Callable[[], object]
    nvmlSystemGetDriverVersion: Callable[[], str]
    nvmlSystemGetCudaDriverVersion: Callable[[], int]
    nvmlDeviceGetCount: Callable[[], int]
    nvmlDeviceGetHandleByIndex: Callable[[int], Any]
    nvmlDeviceGetUUID: Callable[[Any], str]
    nvmlDeviceGetName: Callable[[Any], str]
    nvmlDeviceGetPciInfo: Callable[[Any], Any]
    nvmlDeviceGetCudaComputeCapability: Callable[[Any], Sequence[int]]
    nvmlDeviceGetMemoryInfo: Callable[[Any], Any]
    nvmlDeviceGetCurrPcieLinkGeneration: Callable[[Any], int]
    nvmlDeviceGetMaxPcieLinkGeneration: Callable[[Any], int]
    nvmlDeviceGetCurrPcieLinkWidth: Callable[[Any], int]
    nvmlDeviceGetMaxPcieLinkWidth: Callable[[Any], int]
    nvmlDeviceGetTemperature: Callable[[Any, int], int]
    nvmlDeviceGetUtilizationRates: Callable[[Any], Any]
    nvmlDeviceGetPowerUsage: Callable[[Any], int]
    nvmlDeviceGetTotalEnergyConsumption: Callable[[Any], int]
    nvmlDeviceGetProcessUtilization: Callable[[Any, int], Sequence[Any]]
    nvmlDeviceGetComputeRunningProcesses: Callable[[Any], Sequence[Any]]
    nvmlDeviceGetGraphicsRunningProcesses: Callable[[Any], Sequence[Any]]


class NvidiaInfo(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="nvidia",
):
    """The NVIDIA driver and its cards. No driver is an empty `driver_version` and no cards."""

    driver_version: str
    cuda_version: str
    """The newest CUDA that the driver runs, as `12.8`; empty where unknown."""
    cards_on_bus: tuple[str, ...]
    """PCI addresses of NVIDIA display controllers, with or without a driver."""
    gpus: tuple[Gpu, ...]


def read_nvidia(nvml: Nvml, root: Path, *, now: Callable[[], float] = time.time) -> NvidiaInfo:
    """Ask NVML for the driver and every card.

    Args:
        nvml: the `pynvml` module, or what a test puts in its place.
        root: the file system's root; holds `proc` and `sys`.
        now: unix time in seconds, the clock by which the driver stamps its samples.

    Raises:
        ProbeFailure: the library is there and the driver does not answer.
    """
    cards = display_controllers(root, NVIDIA_VENDOR_ID)
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return NvidiaInfo(driver_version="", cuda_version="", cards_on_bus=cards, gpus=())
    except pynvml.NVMLError as error:
        raise _driver_failure(error) from error
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
        return NvidiaInfo(
            driver_version=driver,
            cuda_version=_cuda_version(nvml),
            cards_on_bus=cards,
            gpus=tuple(
                _read_gpu(nvml, index, driver, root / "proc", now)
                for index in range(nvml.nvmlDeviceGetCount())
            ),
        )
    except _REFUSALS as error:
        raise _driver_failure(error) from error
    finally:
        # A card that fell off the bus may refuse this too, and the answer is already known.
        with contextlib.suppress(pynvml.NVMLError):
            nvml.nvmlShutdown()


def _driver_failure(error: Exception) -> ProbeFailure:
    fix = "Run nvidia-smi to see the driver's own message; reinstall the driver if it fails too."
    if isinstance(error, pynvml.NVMLError_LibRmVersionMismatch):
        fix = "The driver was updated while it ran: restart the machine."
    elif isinstance(error, pynvml.NVMLError_DriverNotLoaded):
        fix = (
            "Load the kernel module (modprobe nvidia); with Secure Boot on, its key must be "
            "enrolled first. Without an NVIDIA card, ignore this."
        )
    return ProbeFailure("The NVIDIA driver does not answer.", why=f"NVML: {error}", fix=fix)


def _cuda_version(nvml: Nvml) -> str:
    try:
        version = nvml.nvmlSystemGetCudaDriverVersion()
    except _REFUSALS:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"


def _read_gpu(
    nvml: Nvml, index: int, driver: str, proc_root: Path, now: Callable[[], float]
) -> Gpu:
    problems: list[str] = []

    def ask(label: str, query: Callable[..., T], *args: object) -> T | None:
        try:
            return query(*args)
        except _REFUSALS as error:
            problems.append(f"{label}: {error}")
            return None

    handle = ask("card", nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return Gpu(
            vendor="nvidia",
            index=index,
            uuid="",
            name=f"NVIDIA GPU {index}",
            pci_address="",
            architecture="",
            driver_version=driver,
            problems=tuple(problems),
        )
    memory = ask("memory", nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = ask("PCI address", nvml.nvmlDeviceGetPciInfo, handle)
    capability = ask("capability", nvml.nvmlDeviceGetCudaComputeCapability, handle)
    load = ask("utilisation", nvml.nvmlDeviceGetUtilizationRates, handle)
    compute = ask("compute processes", nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    graphics = ask("graphics processes", nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    milliwatts = ask("power", nvml.nvmlDeviceGetPowerUsage, handle)
    millijoules = ask("energy", nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    return Gpu(
        vendor="nvidia",
        index=index,
        uuid=ask("uuid", nvml.nvmlDeviceGetUUID, handle) or "",
        name=ask("name", nvml.nvmlDeviceGetName, handle) or f"NVIDIA GPU {index}",
        # NVML writes the domain with eight digits, the kernel with four.
        pci_address="" if pci is None else str(pci.busId).lower()[-12:],
        architecture="" if capability is None else f"sm_{capability[0]}{capability[1]}",
        driver_version=driver,
        vram_total_bytes=None if memory is None else int(memory.total),
        vram_free_bytes=None if memory is None else int(memory.free),
        pcie_generation=ask("PCIe", nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_generation_max=ask("PCIe maximum", nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width=ask("PCIe width", nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        pcie_width_max=ask("PCIe width maximum", nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        temperature_celsius=ask(
            "temperature", nvml.nvmlDeviceGetTemperature, handle, _TEMPERATURE_GPU
        ),
        utilisation_percent=None if load is None else int(load.gpu),
        power_watts=None if milliwatts is None else milliwatts / 1000,
        energy_joules=None if millijoules is None else millijoules / 1000,
        processes=_merge(
            [*(compute or ()), *(graphics or ())], _shares(nvml, handle, now), proc_root
        ),
        problems=tuple(problems),
    )


def _shares(nvml: Nvml, handle: Any, now: Callable[[], float]) -> dict[int, int] | None:
    """Return the share of GPU time of each process that had any; None where it is not told."""
    since = int(now() * 1e6) - _RECENT_MICROSECONDS
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, since)
    except pynvml.NVMLError_NotFound:
        # Nobody used the card.
        return {}
    except _REFUSALS:
        # Most drivers under Windows have no such figure, and no diagnosis needs it.
        return None
    found: dict[int, list[int]] = {}
    for sample in samples:
        # The driver pads its answer with process 0.
        if sample.pid:
            found.setdefault(sample.pid, []).append(min(int(sample.smUtil), 100))
    return {pid: round(sum(shares) / len(shares)) for pid, shares in found.items()}


def _merge(
    found: Sequence[Any], shares: dict[int, int] | None, proc_root: Path
) -> tuple[GpuProcess, ...]:
    # A game is in the compute and in the graphics list, each time with its whole memory.
    used: dict[int, int | None] = {}
    for process in found:
        known = used.get(process.pid)
        bytes_now = process.usedGpuMemory
        used[process.pid] = known if bytes_now is None else max(known or 0, int(bytes_now))
    return tuple(
        GpuProcess(
            pid=pid,
            name=process_name(proc_root, pid),
            used_bytes=used[pid],
            gpu_percent=None if shares is None else shares.get(pid, 0),
        )
        for pid in sorted(used)
    )
