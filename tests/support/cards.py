"""Graphics cards as a driver would show them."""

from typing import Any

from slidepack.daemon.probe.gpu import Gpu, GpuProcess

GB = 10**9


def card(*processes: GpuProcess, used: float = 0.4, **changes: Any) -> Gpu:
    """A card of 24 GB of which `used` GB are taken."""
    fields: dict[str, Any] = {
        "vendor": "nvidia",
        "index": 0,
        "uuid": "GPU-1",
        "name": "NVIDIA GeForce RTX 4090",
        "pci_address": "0000:01:00.0",
        "architecture": "sm_89",
        "driver_version": "1",
        "vram_total_bytes": 24 * GB,
        "vram_free_bytes": int((24 - used) * GB),
        "temperature_celsius": 50,
        "utilisation_percent": 0,
        "processes": processes,
    }
    return Gpu(**(fields | changes))


def user(
    name: str, gigabytes: float | None, pid: int = 7, percent: int | None = 0, **changes: Any
) -> GpuProcess:
    """A process that holds so much of a card, in units of 1e9 bytes; None where nobody says."""
    used = None if gigabytes is None else int(gigabytes * GB)
    return GpuProcess(pid=pid, name=name, used_bytes=used, gpu_percent=percent, **changes)
