"""The PCI Express link of each card: layers and gradients pass through it at every step."""

from collections.abc import Iterator
from typing import Final

from slidepack.daemon.doctor.cards import training_gpus
from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.report import HardwareReport

_GB_PER_SECOND_A_LANE: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.97, 5: 3.94, 6: 7.56}
_FEW_LANES: Final = 4
_LOADED_PERCENT: Final = 50
"""An idle card lowers its link to save power; one that works this much does not."""


def link_findings(report: HardwareReport) -> Iterator[Finding]:
    """Judge the links of the cards that train."""
    for gpu in training_gpus(report):
        if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
            yield _narrowed(gpu, gpu.pcie_width, gpu.pcie_width_max)
        elif gpu.pcie_width_max and gpu.pcie_width_max <= _FEW_LANES:
            yield _few_lanes(gpu, gpu.pcie_width_max)
        if _is_slow_under_load(gpu):
            yield Finding(
                level="note",
                title=f"{gpu.name} works, and its link is slower than it could be.",
                evidence=f"PCIe {gpu.pcie_generation}.0 at {gpu.utilisation_percent} % load; "
                f"card and slot can do {gpu.pcie_generation_max}.0.",
                fix="Set the slot's PCIe speed to Auto in the firmware setup (BIOS); a riser cable "
                "of an older generation does this too.",
            )


def _is_slow_under_load(gpu: Gpu) -> bool:
    now, best, load = gpu.pcie_generation, gpu.pcie_generation_max, gpu.utilisation_percent
    return bool(now and best and now < best and load is not None and load >= _LOADED_PERCENT)


def _narrowed(gpu: Gpu, width: int, width_max: int) -> Finding:
    return Finding(
        level="note",
        title=f"{gpu.name} uses only part of its lanes.",
        evidence=f"x{width} of x{width_max}{_speed(gpu, width)}. What does not fit into VRAM "
        "streams through them.",
        fix="Switch off, seat the card and its riser anew, and clean the contacts; on many boards "
        "a second card or an M.2 drive takes half of the lanes, which the manual tells.",
    )


def _few_lanes(gpu: Gpu, width: int) -> Finding:
    return Finding(
        level="note",
        title=f"{gpu.name} has few lanes to main memory.",
        evidence=f"x{width}{_speed(gpu, width)}: as in a lower slot or an external case.",
        fix="Put the card into the slot next to the processor, if there is one free; models that "
        "fit into VRAM train as fast here.",
    )


def _speed(gpu: Gpu, width: int) -> str:
    lane = _GB_PER_SECOND_A_LANE.get(gpu.pcie_generation_max or 0)
    return f", at most {lane * width:.1f} GB/s" if lane else ""
