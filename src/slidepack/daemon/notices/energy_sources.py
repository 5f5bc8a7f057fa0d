"""Where figures of energy come from: the driver's counter of a card, the processor's RAPL."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import pynvml

from slidepack.daemon.probe.gpu import Gpu

_RAPL: Final = "sys/class/powercap"
_REFUSALS: Final = (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError)


class NvmlEnergy(Protocol):
    """The part of the `pynvml` module that is called here."""

    nvmlInit: Callable[[], object]
    nvmlShutdown: Callable[[], object]
    nvmlDeviceGetHandleByUUID: Callable[[str], Any]
    nvmlDeviceGetTotalEnergyConsumption: Callable[[Any], int]


def read_card_counters(gpus: Sequence[Gpu], nvml: NvmlEnergy = pynvml) -> dict[str, float]:
    """Return what NVIDIA cards have used since their driver was loaded, in joules, by uuid.

    A card that keeps no such counter (before Volta, or of another vendor) is left out.
    """
    uuids = [gpu.uuid for gpu in gpus if gpu.vendor == "nvidia" and gpu.uuid]
    if not uuids:
        return {}
    try:
        nvml.nvmlInit()
    except _REFUSALS:
        return {}
    found = {}
    for uuid in uuids:
        with contextlib.suppress(*_REFUSALS):
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            found[uuid] = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    with contextlib.suppress(*_REFUSALS):
        nvml.nvmlShutdown()
    return found


class PackageCounter(msgspec.Struct, frozen=True, kw_only=True):
    """The counter of one processor package."""

    joules: float
    wraps_at: float
    """Joules at which it starts again from 0."""


class Rapl:
    """The energy counters of the processor's packages."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Name the root of the file system."""
        self._folder = root / _RAPL

    def read(self) -> dict[str, PackageCounter]:
        """Return the counters by zone; none where they cannot be read, and `problem` says why."""
        found = {}
        for zone in self._packages():
            # One that disappears between two reads is one that is not there.
            with contextlib.suppress(OSError, ValueError):
                found[zone.name] = PackageCounter(
                    joules=int((zone / "energy_uj").read_text()) / 1e6,
                    wraps_at=int((zone / "max_energy_range_uj").read_text()) / 1e6,
                )
        return found

    def problem(self) -> str:
        """Return why no package is measured; empty where one is."""
        packages = self._packages()
        if not packages:
            return "this machine shows no energy counter of its CPU"
        try:
            (packages[0] / "energy_uj").read_text()
        except PermissionError:
            return f"only root may read the CPU's counter, {packages[0] / 'energy_uj'}"
        except OSError as error:
            return f"the CPU's counter cannot be read: {error.strerror}"
        return ""

    def _packages(self) -> list[Path]:
        # Sub-zones (cores, memory) are parts of a package, `psys` holds it, and intel-rapl-mmio
        # shows the same one again.
        found = []
        for zone in sorted(self._folder.glob("intel-rapl:[0-9]*")):
            with contextlib.suppress(OSError):
                if (zone / "name").read_text().startswith("package"):
                    found.append(zone)
        return found
