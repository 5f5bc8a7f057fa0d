"""One graphics card as the probe reports it, whoever made it."""

from typing import Literal

import msgspec

Vendor = Literal["nvidia", "amd"]


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process that holds a graphics card."""

    pid: int
    name: str
    """Name of the executable; empty where the process belongs to another namespace or is gone."""
    used_bytes: int | None
    """VRAM it holds; None where the driver does not say (WSL, Windows drivers, MIG)."""
    gpu_percent: int | None = None
    """Share of the card's time in the last two seconds; None where the driver does not say."""
    busy_nanoseconds: int | None = None
    """GPU time since it opened the card, a counter; None where the driver has none."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One graphics card. A value is None where the driver refused it; `problems` says why."""

    vendor: Vendor
    index: int
    """Position among the vendor's cards in bus order, which need not be the order torch uses."""
    uuid: str
    """The driver's stable identifier: `GPU-…` for NVIDIA, the ASIC's unique id for AMD."""
    name: str
    pci_address: str
    """`dddd:bb:dd.f` in lower case."""
    architecture: str
    """`sm_89`, `gfx1100`; empty where unknown."""
    driver_version: str
    vram_total_bytes: int | None = None
    vram_free_bytes: int | None = None
    pcie_generation: int | None = None
    """Of the link now; idle cards lower it, so compare `pcie_generation_max`."""
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    """Lanes in use now."""
    pcie_width_max: int | None = None
    temperature_celsius: int | None = None
    utilisation_percent: int | None = None
    power_watts: float | None = None
    """What the whole card draws now."""
    energy_joules: float | None = None
    """What it took since the driver was loaded, a counter; None where the card has none."""
    processes: tuple[GpuProcess, ...] = ()
    problems: tuple[str, ...] = ()
