"""What a hardware report means for training, finding by finding, with a way out of each problem."""

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from slidepack.daemon.probe.amd import AmdInfo
from slidepack.daemon.probe.drives import Drives
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.memory import MemoryInfo
from slidepack.daemon.probe.nvidia import NvidiaInfo
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.software import SoftwareInfo, TorchBuild
from slidepack.daemon.probe.wsl import WslInfo

Level = Literal["ok", "note", "problem"]

MIN_TRAINING_VRAM_BYTES: Final = 2 << 30
"""Graphics built into a processor carve out less; nobody means to train on them."""

DISK_FLOOR_BYTES: Final = 10 * 10**9
"""Below this a checkpoint of a small model may not fit."""

_TORCH_CHOOSER: Final = "https://pytorch.org/get-started/locally/"
"""PyTorch's own page: the indexes' names change with every release."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that the doctor has to say."""

    level: Level
    """`problem` keeps training from working as asked; `note` is worth knowing."""
    title: str
    evidence: str
    """The values that show it."""
    fix: str
    """What to do; empty where nothing needs doing."""


def findings(report: HardwareReport) -> tuple[Finding, ...]:
    """Judge a report. Problems come first, then notes, then what is well."""
    found = [
        *_unread(report),
        *_cards(report),
        *_torch(report),
        *_amd_access(report),
        *_memory(report),
        *_disk(report),
        *_wsl(report),
    ]
    order: tuple[Level, ...] = ("problem", "note", "ok")
    return tuple(sorted(found, key=lambda finding: order.index(finding.level)))


def gib(num_bytes: int) -> str:
    """Write a number of bytes in GiB, or in MiB below one GiB."""
    if num_bytes < 1 << 30:
        return f"{num_bytes / (1 << 20):.0f} MiB"
    return f"{num_bytes / (1 << 30):.1f} GiB"


def training_gpus(report: HardwareReport) -> tuple[Gpu, ...]:
    """Return the cards worth training on: those not known to be a processor's own graphics."""
    return tuple(
        gpu
        for gpu in report.gpus
        if gpu.vram_total_bytes is None or gpu.vram_total_bytes >= MIN_TRAINING_VRAM_BYTES
    )


def _unread(report: HardwareReport) -> Iterator[Finding]:
    for problem in report.problems:
        yield Finding(level="problem", title=problem.what, evidence=problem.why, fix=problem.fix)


def _cards(report: HardwareReport) -> Iterator[Finding]:
    nvidia = report.nvidia
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
    for gpu in report.gpus:
        if gpu.vram_total_bytes is None:
            yield Finding(
                level="problem",
                title=f"{gpu.name} does not tell its memory.",
                evidence="; ".join(gpu.problems),
                fix="Restart the machine; if it stays so, reinstall the card's driver.",
            )
    usable = training_gpus(report)
    for gpu in usable:
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
    vendors_read = isinstance(nvidia, NvidiaInfo) and isinstance(report.amd, AmdInfo)
    if not usable and vendors_read:
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


def _torch(report: HardwareReport) -> Iterator[Finding]:
    software = report.software
    if not isinstance(software, SoftwareInfo):
        return
    torch = software.torch
    cards = training_gpus(report)
    if torch.build == "missing":
        yield Finding(
            level="problem",
            title="PyTorch does not import, so nothing can train.",
            evidence=torch.problem,
            fix="Install it into the Python that runs Slidepack: pip install torch",
        )
        return
    if cards:
        yield from _torch_on_cards(software, cards)
    else:
        yield _torch_ok(torch, "on the CPU")


def _torch_on_cards(software: SoftwareInfo, cards: tuple[Gpu, ...]) -> Iterator[Finding]:
    torch = software.torch
    vendors = {gpu.vendor for gpu in cards}
    names = ", ".join(gpu.name for gpu in cards)
    wanted = "cuda" if "nvidia" in vendors else "rocm"
    fits = (torch.build == "cuda" and "nvidia" in vendors) or (
        torch.build == "rocm" and "amd" in vendors
    )
    if not fits:
        yield Finding(
            level="problem",
            title=f"The installed PyTorch cannot use {names}.",
            evidence=f"torch {torch.version} is a {_build_name(torch)} build.",
            fix=_reinstall(wanted),
        )
        return
    unsupported = [device for device in torch.devices if not device.supported]
    for device in unsupported:
        yield Finding(
            level="problem",
            title=f"The installed PyTorch has no code for {device.name}.",
            evidence=f"The card is {device.architecture}; torch {torch.version} was built for "
            f"{' '.join(torch.arch_list)}.",
            fix=_reinstall(wanted)
            + "; a card older than every entry needs an older torch, a newer one a newer torch.",
        )
    if not torch.devices:
        evidence = [torch.problem, *torch.warnings, software.visible_devices]
        yield Finding(
            level="problem",
            title=f"PyTorch does not see {names}.",
            evidence="; ".join(part for part in evidence if part),
            fix="Unset CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES; if torch speaks of an old "
            "driver, update the driver.",
        )
    elif not unsupported:
        yield _torch_ok(torch, f"on {', '.join(device.name for device in torch.devices)}")
    if not software.triton.version:
        yield Finding(
            level="problem",
            title="Triton does not import; the GPU kernels need it.",
            evidence=software.triton.problem,
            fix="Install the Triton that belongs to this torch: pip install triton",
        )


def _torch_ok(torch: TorchBuild, where: str) -> Finding:
    return Finding(
        level="ok",
        title=f"PyTorch trains {where}.",
        evidence=f"torch {torch.version}, {_build_name(torch)} build.",
        fix="",
    )


def _build_name(torch: TorchBuild) -> str:
    names = {"cpu": "CPU-only", "cuda": "CUDA", "rocm": "ROCm", "missing": "missing"}
    return f"{names[torch.build]} {torch.build_version}".strip()


def _reinstall(build: str) -> str:
    platform = {"cuda": "CUDA", "rocm": "ROCm"}[build]
    return f"Reinstall torch with the pip command for {platform} from {_TORCH_CHOOSER}"


def _amd_access(report: HardwareReport) -> Iterator[Finding]:
    amd = report.amd
    if not isinstance(amd, AmdInfo):
        return
    if amd.amdsmi_problem:
        yield Finding(
            level="note",
            title="amdsmi gives no answer; AMD cards are read from the kernel alone.",
            evidence=amd.amdsmi_problem,
            fix="Install the amdsmi that belongs to your ROCm, or leave it: names may be vaguer.",
        )
    cards = [gpu.name for gpu in training_gpus(report) if gpu.vendor == "amd"]
    if not cards:
        return
    names = ", ".join(cards)
    join = f"sudo usermod -aG {','.join(amd.missing_groups)} $USER, then log out and in again."
    if amd.kfd_access == "missing":
        yield Finding(
            level="problem",
            title=f"{names} shows pictures and cannot compute.",
            evidence="/dev/kfd does not exist.",
            fix="Load the amdgpu module with compute support; in a container, pass /dev/kfd in.",
        )
    elif amd.kfd_access == "denied":
        groups = ", ".join(amd.missing_groups)
        yield Finding(
            level="problem",
            title=f"This user may not compute on {names}.",
            evidence=f"/dev/kfd is refused; not in group: {groups or 'the one that owns it'}.",
            fix=join if groups else "See `ls -l /dev/kfd` for the group that it wants.",
        )
    elif amd.missing_groups:
        yield Finding(
            level="note",
            title=f"Access to {names} may end when you log out.",
            evidence=f"/dev/kfd opens, and this user is not in group: "
            f"{', '.join(amd.missing_groups)}.",
            fix=f"For nights without a login: {join}",
        )


def _memory(report: HardwareReport) -> Iterator[Finding]:
    memory = report.memory
    if not isinstance(memory, MemoryInfo):
        return
    limit = memory.cgroup_limit_bytes
    if limit is not None and limit < memory.total_bytes:
        yield Finding(
            level="note",
            title="A control group gives this process less than the machine's memory.",
            evidence=f"{gib(limit)} of {gib(memory.total_bytes)}.",
            fix="Raise MemoryMax= of the systemd unit, or the container's memory limit.",
        )
    else:
        yield Finding(
            level="ok",
            title="Main memory",
            evidence=f"{gib(memory.total_bytes)}, {gib(memory.available_bytes)} available.",
            fix="",
        )
    if memory.pin_note:
        yield Finding(
            level="note",
            title="WSL limits pinned memory.",
            evidence=memory.pin_note,
            fix="Nothing to do; native Linux has no such wall and is faster.",
        )
    locked = memory.memlock_bytes
    # Only transfers to a card pin memory.
    if training_gpus(report) and locked is not None and locked < memory.total_bytes // 2:
        yield Finding(
            level="note",
            title="The limit on locked memory is low.",
            evidence=f"ulimit -l is {gib(locked)}, the machine has {gib(memory.total_bytes)}. "
            "A driver that counts pinned memory against it leaves only a small ring to stream "
            "layers through, which is slower.",
            fix="LimitMEMLOCK=infinity in the systemd unit, or memlock unlimited in "
            "/etc/security/limits.d.",
        )


def _disk(report: HardwareReport) -> Iterator[Finding]:
    if not isinstance(report.drives, Drives):
        return
    for drive in report.drives.drives:
        if not drive.holds_data_dir:
            continue
        place = f"{drive.mount} ({drive.device}, {drive.fs_type})"
        if drive.read_only:
            yield Finding(
                level="problem",
                title="The data directory's drive cannot be written.",
                evidence=f"{place} is mounted read-only.",
                fix="Set SLIDEPACK_HOME to a folder on another drive.",
            )
        elif drive.free_bytes < DISK_FLOOR_BYTES:
            yield Finding(
                level="problem",
                title="The data directory's drive is nearly full.",
                evidence=f"{gib(drive.free_bytes)} free on {place}.",
                fix="Free some space, or set SLIDEPACK_HOME to a folder on another drive.",
            )
        else:
            yield Finding(
                level="ok",
                title="Room for runs",
                evidence=f"{gib(drive.free_bytes)} free on {place}.",
                fix="",
            )
        if drive.kind in ("hdd", "network", "memory"):
            names = {"hdd": "a spinning disk", "network": "a network drive", "memory": "memory"}
            yield Finding(
                level="note",
                title=f"The data directory is on {names[drive.kind]}.",
                evidence=f"{place}.",
                fix="Set SLIDEPACK_HOME to a folder on an SSD: checkpoints and swapped-out layers "
                "are large.",
            )


def _wsl(report: HardwareReport) -> Iterator[Finding]:
    if isinstance(report.wsl, WslInfo) and report.wsl.version == "wsl1":
        yield Finding(
            level="problem",
            title="WSL 1 cannot reach a graphics card.",
            evidence=f"Kernel {report.wsl.kernel}.",
            fix="In Windows: wsl --set-version <distribution> 2",
        )
