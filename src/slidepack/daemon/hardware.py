"""The current state of the hardware, and what of it a run may use."""

import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.device_choice import chosen_cards
from slidepack.daemon.doctor.cards import training_gpus
from slidepack.daemon.drive_wears import DriveWears
from slidepack.daemon.policy.gpu_sample import card_key
from slidepack.daemon.probe.drive_kind import disks_below
from slidepack.daemon.probe.drives import mount_of, read_mounts
from slidepack.daemon.probe.endurance import DriveWear
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.problem import ProbeFailure, ProbeProblem
from slidepack.daemon.probe.report import HardwareReport, probe_hardware, settle
from slidepack.daemon.probe.software import (
    SoftwareInfo,
    SoftwareProbe,
    TorchBuild,
    TorchDevice,
    torch_report_command,
)
from slidepack.daemon.probe.tier import Tier
from slidepack.daemon.tier_drives import TierDrives
from slidepack.engine.memory import Machine
from slidepack.engine.memory_parts import NvmeRoom

_FRESH_SECONDS: Final = 2.0


class Waiting(msgspec.Struct, frozen=True):
    """Why no run can start on this machine now; it may well be able to later."""

    reason: str


class HardwareMonitor:
    """Probes on demand, at most once in two seconds; asks torch in the background."""

    def __init__(
        self, data_dir: Path, device: str, drives: TierDrives | None, wears: DriveWears
    ) -> None:
        """Bind what is looked at; nothing is probed yet.

        Args:
            data_dir: whose drive matters.
            device: the setting (`device_choice`).
            drives: that training state may lie on; None where none may.
            wears: asks drives for their wear.
        """
        self._drives = drives
        self._wears = wears
        self._device = device
        self._data_dir = data_dir
        self._probe = SoftwareProbe(torch_report_command())
        self._lock = threading.Lock()
        self._probed_at = float("-inf")
        self._fast: HardwareReport | None = None
        self._software: SoftwareInfo | ProbeProblem | None = None
        self.wear: tuple[DriveWear, ...] = ()
        """Of the drives that hold the data directory, as they were last asked."""

    def look_at_wear(self) -> None:
        """Ask the drives below the data directory how worn they are.

        Their tools may take seconds, so the caller is a background thread.
        """
        root = Path("/")
        mount = mount_of(self._data_dir, read_mounts(root))
        disks = [] if mount is None else disks_below(root, mount.device, mount.numbers)
        self.wear = tuple(map(self._wears.ask, disks))

    def probe_software_where_needed(self) -> None:
        """Ask torch what it can use, if it was not asked yet or its answer allows no run.

        It takes seconds, so the caller is a background thread.
        """
        if isinstance(machine_now(self.report(), whole=False, device="auto"), Waiting):
            self._probe_software()

    def _probe_software(self) -> None:
        try:
            found: SoftwareInfo | ProbeProblem = self._probe.ask()
        except ProbeFailure as failure:
            found = ProbeProblem(
                item="software", what=failure.what, why=failure.why, fix=failure.fix
            )
        with self._lock:
            self._software = found

    def stop(self) -> None:
        """Wait for torch's answer no longer, from any thread."""
        self._probe.stop()

    def forget_software(self) -> None:
        """Ask torch anew at the next look: a card may have been lost, as in a sleep."""
        with self._lock:
            self._software = None

    def training_cards(self) -> frozenset[str] | None:
        """Return the keys of the cards that runs use (`card_key`); None where nobody knows."""
        usable = [device for device in self._torch_devices() if device.supported]
        usable, _ = chosen_cards(self._device, usable)
        found = (gpu for gpu in self._seen_gpus() if any(_is_same(gpu, one) for one in usable))
        return frozenset(map(card_key, found)) or None

    def card_of(self, device: str) -> str | None:
        """Return the key of the card (`card_key`) that torch calls so; None where nobody knows."""
        for found in self._torch_devices():
            if _key(found) == device:
                return next((card_key(g) for g in self._seen_gpus() if _is_same(g, found)), None)
        return None

    def name_of(self, device: str) -> str:
        """Return a device's name as in `DeviceNow`; empty where nobody knows it now."""
        if device == "cpu":
            return "cpu"
        return next((one.name for one in self._torch_devices() if _key(one) == device), "")

    def _torch_devices(self) -> tuple[TorchDevice, ...]:
        """Return the cards as torch saw them; none where it has not answered."""
        with self._lock:
            software = self._software
        if software is None or isinstance(software, ProbeProblem):
            return ()
        return tuple(software.torch.devices)

    def _seen_gpus(self) -> tuple[Gpu, ...]:
        """Return the cards as the drivers showed them last; none before the first look."""
        with self._lock:
            return () if self._fast is None else self._fast.gpus

    def measured_drives(self) -> NvmeRoom | None:
        """Return the drives for training state with measured rates; at first it takes seconds."""
        if self._drives is None:
            return None
        found = settle("tier", self._drives.measured)
        return found.room if isinstance(found, Tier) else None

    def report(self) -> HardwareReport:
        """Return the hardware, at most two seconds old; `software` is None until torch answered."""
        with self._lock:
            now = time.monotonic()
            if self._fast is None or now - self._probed_at > _FRESH_SECONDS:
                self._fast = with_tier(probe_hardware(self._data_dir, software=False), self._drives)
                self._probed_at = now
            return msgspec.structs.replace(self._fast, software=self._software)


def with_tier(report: HardwareReport, drives: TierDrives | None) -> HardwareReport:
    """Return a report with the drives that training state may lie on; None leaves them out."""
    if drives is None:
        return report
    return msgspec.structs.replace(report, tier=settle("tier", drives.now))


class DeviceNow(msgspec.Struct, frozen=True, kw_only=True):
    """A device that training may use."""

    key: str
    """`cpu`, or torch's name of the card, as in `cuda:0`."""
    name: str
    """Of the card, which equal cards have in common; `cpu` for the CPU."""
    card: str
    """Key of the card for the policy (`card_key`); empty for the CPU."""
    machine: Machine


def devices_now(report: HardwareReport, *, whole: bool, device: str) -> list[DeviceNow] | Waiting:
    """Return what runs may use, one entry a usable card, or why none can start now.

    A card that is there and cannot be used, as after a driver update, is a reason to wait, and so
    is a driver that does not answer: a run never goes to the CPU in silence.

    Args:
        report: the hardware.
        whole: count all of the memory instead of what is free now.
        device: the setting (`device_choice`).
    """
    software = report.software
    if software is None:
        return Waiting("waits until the hardware has been looked at")
    memory, cpu = report.memory, report.cpu
    for item in (software, memory, cpu):
        if isinstance(item, ProbeProblem):
            return Waiting(f"waits: {item.what} {item.why} {item.fix}")
    assert not isinstance(software, ProbeProblem)
    assert not isinstance(memory, ProbeProblem)
    assert not isinstance(cpu, ProbeProblem)
    usable = [found for found in software.torch.devices if found.supported]
    if device != "cpu" and not usable:
        why = _why_not_the_cpu(report, software.torch)
        if why:
            return Waiting(f'waits: {why}, or set device = "cpu" in the settings')
    room = report.tier.room if isinstance(report.tier, Tier) else None
    limit = memory.cgroup_limit_bytes or memory.total_bytes
    ram = min(limit, memory.total_bytes) if whole else min(limit, memory.available_bytes)
    threads = max(1, min(cpu.allowed_cores, cpu.physical_cores or cpu.allowed_cores))
    if device == "cpu" or (device == "auto" and not usable):
        alone = Machine(
            device="cpu",
            device_free_bytes=0,
            ram_available_bytes=ram,
            cpu_threads=threads,
            nvme=room,
        )
        return [DeviceNow(key="cpu", name="cpu", card="", machine=alone)]
    chosen, unknown = chosen_cards(device, usable)
    if unknown:
        there = ", ".join(f"{_key(one)} ({one.name})" for one in usable) or "no card"
        return Waiting(f'waits: the setting device names "{unknown}", and torch can use {there}')
    return [_device_now(found, report.gpus, ram, threads, room, whole=whole) for found in chosen]


def machine_now(report: HardwareReport, *, whole: bool, device: str) -> Machine | Waiting:
    """Return the first of `devices_now` as the machine of one run."""
    found = devices_now(report, whole=whole, device=device)
    return found if isinstance(found, Waiting) else found[0].machine


def _device_now(
    device: TorchDevice,
    gpus: tuple[Gpu, ...],
    ram: int,
    threads: int,
    room: NvmeRoom | None,
    *,
    whole: bool,
) -> DeviceNow:
    card = next((gpu for gpu in gpus if _is_same(gpu, device)), None)
    return DeviceNow(
        key=_key(device),
        name=device.name,
        card="" if card is None else card_key(card),
        machine=Machine(
            device=_key(device),
            device_free_bytes=_vram(device, gpus, whole=whole),
            ram_available_bytes=ram,
            cpu_threads=threads,
            nvme=room,
        ),
    )


def _why_not_the_cpu(report: HardwareReport, torch: TorchBuild) -> str:
    """Return which card torch was meant for and why it cannot use it; empty where there is none."""
    if torch.build not in ("cuda", "rocm"):
        return ""
    vendor = report.nvidia if torch.build == "cuda" else report.amd
    if isinstance(vendor, ProbeProblem):
        return f"{vendor.what} ({vendor.why}) {vendor.fix} See `slidepack doctor`"
    shown = {gpu.pci_address for gpu in vendor.gpus}
    # What the driver shows and nobody means to train on is no reason to wait.
    names = [gpu.name for gpu in training_gpus(report)]
    names += [f"the card at {address}" for address in vendor.cards_on_bus if address not in shown]
    if not names:
        return ""
    why = torch.problem or "torch shows no card that it has code for"
    return f"{names[0]} cannot be used ({why}); see `slidepack doctor`"


def _vram(device: TorchDevice, gpus: tuple[Gpu, ...], *, whole: bool) -> int:
    """Return the VRAM of torch's device, as the driver shows it now."""
    if whole:
        return device.total_bytes or 0
    for gpu in gpus:
        if _is_same(gpu, device) and gpu.vram_free_bytes is not None:
            return gpu.vram_free_bytes
    return device.free_bytes or 0


def _key(device: TorchDevice) -> str:
    return f"cuda:{device.index}"


def _is_same(gpu: Gpu, device: TorchDevice) -> bool:
    same_uuid = bool(device.uuid) and gpu.uuid == device.uuid
    same_slot = bool(device.pci_address) and gpu.pci_address == device.pci_address
    return same_uuid or same_slot
