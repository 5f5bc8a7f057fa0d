"""The devices that plans count on, and how much of each."""

from collections.abc import Collection
from typing import Final

import msgspec

from slidepack.daemon.hardware import DeviceNow, Waiting, devices_now
from slidepack.daemon.planning.picture import PlannedDevice
from slidepack.daemon.policy.gpu_sample import card_key
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.report import HardwareReport
from slidepack.engine.memory_parts import Machine, NvmeRoom
from slidepack.engine.rates import Rates, rates_of, with_drives

__all__ = ["devices_to_plan", "whole_device"]

_GRAIN_BYTES: Final = 256 << 20
"""Free memory is counted in such pieces: it changes all the time, and a plan need not."""


def devices_to_plan(
    report: HardwareReport,
    *,
    device: str,
    busy: Collection[str],
    reserved_vram_bytes: int,
    held: Collection[str] = (),
) -> list[PlannedDevice] | Waiting:
    """Return the devices with the memory that plans may count on, or why there is none.

    Of a device that trains for us all memory counts: what is taken there is our own, and will be
    free again. Of another one that counts which is free now. One that a chat holds is left out as
    long as there are others.

    Args:
        report: the hardware.
        device: the setting.
        busy: keys of the devices on which our workers run.
        reserved_vram_bytes: of each card, kept free by the policy.
        held: keys of the devices on which chats run.
    """
    free = devices_now(report, whole=False, device=device)
    whole = devices_now(report, whole=True, device=device)
    if isinstance(free, Waiting):
        return free
    if isinstance(whole, Waiting):
        return whole
    all_of = {found.key: found.machine for found in whole}
    cards = {card_key(gpu): gpu for gpu in report.gpus}
    open_to_jobs = [found for found in free if found.key not in held]
    ours = {*busy, *held}
    return [
        PlannedDevice(
            key=found.key,
            name=found.name,
            machine=_counted(
                all_of[found.key] if found.key in ours else found.machine, reserved_vram_bytes
            ),
            rates=_rates(found, cards.get(found.card)),
        )
        for found in open_to_jobs or free
    ]


def whole_device(report: HardwareReport, device: str) -> PlannedDevice | Waiting:
    """Return the first device with all of its memory, or why none can be used now."""
    found = devices_now(report, whole=True, device=device)
    if isinstance(found, Waiting):
        return found
    first = found[0]
    cards = {card_key(gpu): gpu for gpu in report.gpus}
    rates = _rates(first, cards.get(first.card))
    return PlannedDevice(key=first.key, name=first.name, machine=first.machine, rates=rates)


def _counted(machine: Machine, reserved_vram_bytes: int) -> Machine:
    return msgspec.structs.replace(
        machine,
        device_free_bytes=_rounded(max(0, machine.device_free_bytes - reserved_vram_bytes)),
        ram_available_bytes=_rounded(machine.ram_available_bytes),
        nvme=None if machine.nvme is None else _grained(machine.nvme),
    )


def _grained(room: NvmeRoom) -> NvmeRoom:
    return msgspec.structs.replace(room, free_bytes=_rounded(room.free_bytes))


def _rounded(size: int) -> int:
    return size // _GRAIN_BYTES * _GRAIN_BYTES


def _rates(device: DeviceNow, card: Gpu | None) -> Rates:
    rates = rates_of(
        "" if device.key == "cpu" else device.name,
        cpu_threads=device.machine.cpu_threads,
        # An idle card lowers its link.
        pcie_generation=card.pcie_generation_max or card.pcie_generation if card else None,
        pcie_width=card.pcie_width if card else None,
    )
    return with_drives(rates, device.machine.nvme)
