"""The cards, their drivers and the way to them."""

from collections.abc import Iterator
from typing import Final

from slidepack.daemon.doctor.finding import Finding, gib
from slidepack.daemon.probe.amd import AmdInfo
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.nvidia import NvidiaInfo
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport

MIN_TRAINING_VRAM_BYTES: Final = 2 << 30
"""Graphics built into a processor carve out less; nobody means to train on them."""


def training_gpus(report: HardwareReport) -> tuple[Gpu, ...]:
    """Return the cards worth training on: those not known to be a processor's own graphics."""
    return tuple(
        gpu
        for gpu in report.gpus
        if gpu.vram_total_bytes is None or gpu.vram_total_bytes >= MIN_TRAINING_VRAM_BYTES
    )


def card_findings(report: HardwareReport) -> Iterator[Finding]:
    """Judge what the drivers show."""
    yield from _driverless(report.nvidia)
    yield from _each_card(report)
    yield from _no_card(report)


def _driverless(nvidia: NvidiaInfo | ProbeProblem) -> Iterator[Finding]:
    if isinstance(nvidia, NvidiaInfo) and nvidia.cards_on_bus and not nvidia.gpus:
        where = f"PCI {', '.join(nvidia.cards_on_bus)}"
        if nvidia.driver_version:
            yield Finding(
                level="problem",
                title="NVIDIA's driver runs and shows no card.",
                evidence=f"{where}; driver {nvidia.driver_version}.",
                fix="Restart the machine; then look for NVRM and Xid lines in `dmesg`.",
            )
        else:
            yield Finding(
                level="problem",
                title="An NVIDIA card is in the machine, and its driver is not.",
                evidence=f"{where}; libnvidia-ml is not installed.",
                fix="Install NVIDIA's driver from your distribution, then restart the machine.",
            )


def _each_card(report: HardwareReport) -> Iterator[Finding]:
    for gpu in report.gpus:
        if gpu.vram_total_bytes is None:
            yield Finding(
                level="problem",
                title=f"{gpu.name} does not tell its memory.",
                evidence="; ".join(gpu.problems),
                fix="Restart the machine; if it stays so, reinstall the card's driver.",
            )
    for gpu in training_gpus(report):
        if gpu.vram_total_bytes is not None:
            free = gpu.vram_free_bytes
            yield Finding(
                level="ok",
                title=gpu.name,
                evidence=f"{gib(gpu.vram_total_bytes)} of VRAM"
                + (f", {gib(free)} free" if free is not None else "")
                + f"; driver {gpu.driver_version}.",
                fix="",
            )


def _no_card(report: HardwareReport) -> Iterator[Finding]:
    vendors_read = isinstance(report.nvidia, NvidiaInfo) and isinstance(report.amd, AmdInfo)
    if not training_gpus(report) and vendors_read:
        small = [gpu.name for gpu in report.gpus]
        yield Finding(
            level="note",
            title="No graphics card to train on: training runs on the CPU.",
            evidence=f"Only {', '.join(small)} with less than "
            f"{gib(MIN_TRAINING_VRAM_BYTES)} of memory."
            if small
            else "Neither an NVIDIA nor an AMD driver shows a card.",
            fix="Small models train well enough this way; a larger one needs a card.",
        )
