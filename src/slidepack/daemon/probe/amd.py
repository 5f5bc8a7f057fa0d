"""AMD cards, through sysfs, with amdsmi's answers over it where that library is installed."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from slidepack.daemon.probe.amdsmi_answers import AmdSmiAnswer, ask_amdsmi
from slidepack.daemon.probe.gpu import Gpu, GpuProcess
from slidepack.daemon.probe.kernel_files import list_names, read_fields, read_int, read_text
from slidepack.daemon.probe.pci import AMD_VENDOR_ID, display_controllers
from slidepack.daemon.probe.pcie_link import read_link
from slidepack.daemon.probe.processes import drm_users

Access = Literal["ok", "denied", "missing"]

NEEDED_GROUPS: Final = ("render", "video")
"""The groups that own /dev/kfd and /dev/dri, by distribution; ROCm asks for both."""

_NAME_LISTS: Final = (
    Path("usr/share/libdrm/amdgpu.ids"),
    Path("opt/amdgpu/share/libdrm/amdgpu.ids"),
)


class AmdInfo(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="amd",
):
    """The AMD cards, and whether this user may compute on them."""

    gpus: tuple[Gpu, ...]
    kfd_access: Access
    """Access to /dev/kfd, the compute door of the driver; `missing` where it is not there."""
    missing_groups: tuple[str, ...]
    """Those of `NEEDED_GROUPS` that this user is not in."""
    cards_on_bus: tuple[str, ...] = ()
    """PCI addresses of AMD display controllers, with or without a driver."""
    amdsmi_problem: str = ""
    """Why amdsmi gave no answer; empty where it answered or is not installed."""


def read_amd(
    root: Path,
    groups: frozenset[str],
    *,
    load_amdsmi: Callable[[str], object] | None = None,
    may_open: Callable[[Path, int], bool] = os.access,
) -> AmdInfo:
    """Read every AMD card below `root`, which holds `sys`, `proc`, `dev` and `usr`.

    Args:
        root: the file system's root.
        groups: names of the groups that this user is in.
        load_amdsmi: imports amdsmi by name; None leaves the library out.
        may_open: `os.access`, or what a test puts in its place.
    """
    devices = _card_devices(root)
    cards = display_controllers(root, AMD_VENDOR_ID)
    if not devices:
        return AmdInfo(gpus=(), kfd_access="missing", missing_groups=(), cards_on_bus=cards)
    answers, amdsmi_problem = ask_amdsmi(load_amdsmi) if load_amdsmi else ({}, "")
    users = drm_users(root / "proc", devices)
    gpus = []
    for index, (address, device) in enumerate(sorted(devices.items())):
        gpu = _read_gpu(root, index, address, device)
        gpu = msgspec.structs.replace(gpu, processes=users[address])
        gpus.append(_with_answer(gpu, answers.get(address)))
    kfd = root / "dev" / "kfd"
    access: Access = "missing"
    if kfd.exists():
        access = "ok" if may_open(kfd, os.R_OK | os.W_OK) else "denied"
    return AmdInfo(
        gpus=tuple(gpus),
        kfd_access=access,
        missing_groups=tuple(name for name in NEEDED_GROUPS if name not in groups),
        cards_on_bus=cards,
        amdsmi_problem=amdsmi_problem,
    )


def _card_devices(root: Path) -> dict[str, Path]:
    drm = root / "sys" / "class" / "drm"
    found = {}
    for name in list_names(drm):
        device = drm / name / "device"
        # Connectors are named card0-DP-1 and have a device link of their own.
        if re.fullmatch(r"card\d+", name) and read_int(device / "vendor") == AMD_VENDOR_ID:
            address = read_fields(device / "uevent", "=").get("PCI_SLOT_NAME", name)
            found[address.lower()] = device
    return found


def _read_gpu(root: Path, index: int, address: str, device: Path) -> Gpu:
    problems = []
    total = read_int(device / "mem_info_vram_total")
    used = read_int(device / "mem_info_vram_used")
    if total is None or used is None:
        driver = read_fields(device / "uevent", "=").get("DRIVER", "no driver")
        problems.append(f"memory: not offered by the kernel (driver in use: {driver})")
    temperature = _temperature(device)
    if temperature is None:
        problems.append("temperature: not offered by the kernel")
    utilisation = read_int(device / "gpu_busy_percent")
    if utilisation is None:
        problems.append("utilisation: not offered by the kernel")
    link = read_link(device)
    return Gpu(
        vendor="amd",
        index=index,
        uuid=read_text(device / "unique_id") or "",
        name=_name(root, device) or f"AMD GPU {index}",
        pci_address=address,
        architecture="",
        driver_version=_driver_version(root),
        vram_total_bytes=total,
        vram_free_bytes=None if total is None or used is None else max(total - used, 0),
        pcie_generation=link.generation,
        pcie_generation_max=link.generation_max,
        pcie_width=link.width,
        pcie_width_max=link.width_max,
        temperature_celsius=temperature,
        utilisation_percent=utilisation,
        power_watts=_power(device),
        problems=tuple(problems),
    )


def _with_answer(gpu: Gpu, answer: AmdSmiAnswer | None) -> Gpu:
    if answer is None:
        return gpu
    return msgspec.structs.replace(
        gpu,
        name=answer.name or gpu.name,
        uuid=answer.uuid or gpu.uuid,
        architecture=answer.architecture,
        driver_version=answer.driver_version or gpu.driver_version,
        power_watts=gpu.power_watts if answer.power_watts is None else answer.power_watts,
        energy_joules=answer.energy_joules,
        processes=_with_busy_time(answer.processes, gpu.processes) or gpu.processes,
        problems=(*gpu.problems, *answer.problems),
    )


def _with_busy_time(
    answered: tuple[GpuProcess, ...], seen: tuple[GpuProcess, ...]
) -> tuple[GpuProcess, ...]:
    busy = {process.pid: process.busy_nanoseconds for process in seen}
    return tuple(
        msgspec.structs.replace(process, busy_nanoseconds=busy.get(process.pid))
        for process in answered
    )


def _power(device: Path) -> float | None:
    for sensor in list_names(device / "hwmon"):
        for name in ("power1_average", "power1_input"):
            microwatts = read_int(device / "hwmon" / sensor / name)
            if microwatts is not None:
                return microwatts / 1e6
    return None


def _temperature(device: Path) -> int | None:
    for sensor in list_names(device / "hwmon"):
        millidegrees = read_int(device / "hwmon" / sensor / "temp1_input")
        if millidegrees is not None:
            return millidegrees // 1000
    return None


def _driver_version(root: Path) -> str:
    # Only AMD's own package gives the module a version; the kernel's carries the kernel's.
    version = read_text(root / "sys" / "module" / "amdgpu" / "version")
    kernel = read_text(root / "proc" / "sys" / "kernel" / "osrelease") or ""
    return version or f"in kernel {kernel}".strip()


def _name(root: Path, device: Path) -> str:
    product = read_text(device / "product_name")
    if product:
        return product
    device_id = read_int(device / "device")
    revision = read_int(device / "revision")
    if device_id is None:
        return ""
    for path in _NAME_LISTS:
        for line in (read_text(root / path) or "").splitlines():
            fields = [field.strip() for field in line.split(",", 2)]
            if fields[:2] == [f"{device_id:X}", f"{revision or 0:02X}"] and len(fields) == 3:
                return fields[2]
    return f"AMD GPU {device_id:04x}"
