"""The hardware as the first page shows it: who has how much of what. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.probe.drives import Drive
from slidepack.daemon.probe.endurance import DriveWear
from slidepack.daemon.probe.gpu import Gpu, GpuProcess
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.tier import Tier
from slidepack.web.format import number, plural, size

__all__ = ["HardwareCard", "HardwareView", "Level", "hardware_view"]

_WIDTH: Final = 1000
_MOST_NAMED: Final = 4
_HIGH: Final = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """A bar: ours, then what others have, the rest is free. Widths are in thousandths."""

    ours: int
    others: int
    high: bool
    """Whether it is nearly full."""
    words: str
    """The same as text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareCard:
    """A part of the machine."""

    title: str
    head: str = ""
    """What matters most: how much is free."""
    rest: str = ""
    """Goes on with the head, less loud."""
    level: Level | None = None
    lines: tuple[str, ...] = ()
    warn: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareView:
    """The hardware strip."""

    cards: tuple[HardwareCard, ...]
    problems: tuple[Finding, ...] = field(default=())
    """What the doctor finds wrong."""


def hardware_view(
    report: HardwareReport,
    *,
    problems: Sequence[Finding],
    holders: Mapping[int, str],
    planned_ram_bytes: int,
    load: float,
    wear: Sequence[DriveWear] = (),
) -> HardwareView:
    """Return the cards.

    Args:
        report: the hardware as it is now.
        problems: what the doctor finds wrong with it.
        holders: whom each process of ours works for, by its id.
        planned_ram_bytes: what runs take of the main memory by their plans.
        load: how many processes want to run, over the last minute.
        wear: of the drives that hold the data directory.
    """
    return HardwareView(
        cards=(
            *(_gpu(gpu, holders) for gpu in report.gpus),
            *(() if report.gpus else (_no_gpu(report),)),
            _cpu(report, load),
            _memory(report, planned_ram_bytes),
            *_drives(report, wear),
        ),
        problems=tuple(problems),
    )


def _gpu(gpu: Gpu, holders: Mapping[int, str]) -> HardwareCard:
    total, free = gpu.vram_total_bytes, gpu.vram_free_bytes
    lines = (_dotted(_gpu_figures(gpu)), _gpu_users(gpu, holders), _dotted(_gpu_link(gpu)))
    shown = tuple(line for line in lines if line)
    if not total or free is None:
        head = f"{size(total)} VRAM" if total else ""
        return HardwareCard(title=gpu.name, head=head, lines=shown)
    ours = sum(p.used_bytes or 0 for p in gpu.processes if p.pid in holders)
    others = max(total - free - ours, 0)
    silent = any(p.pid in holders and p.used_bytes is None for p in gpu.processes)
    if silent:
        # A driver that does not say who holds what: what is in use is all that is known.
        words = f"{size(total - free)} in use, {size(free)} free"
    else:
        words = f"{size(ours)} ours, {size(others)} others, {size(free)} free"
    return HardwareCard(
        title=gpu.name,
        head=f"{size(free)} free",
        rest=f"of {size(total)} VRAM",
        level=_level(ours, others, total, words),
        lines=(words.rpartition(",")[0], *shown),
    )


def _gpu_figures(gpu: Gpu) -> list[str]:
    figures = []
    if gpu.utilisation_percent is not None:
        figures.append(f"load {gpu.utilisation_percent}%")
    if gpu.temperature_celsius is not None:
        figures.append(f"{gpu.temperature_celsius} °C")
    if gpu.power_watts is not None:
        figures.append(f"{gpu.power_watts:.0f} W")
    return figures


def _gpu_link(gpu: Gpu) -> list[str]:
    link = [f"driver {gpu.driver_version}" if gpu.driver_version else "driver unknown"]
    if gpu.pcie_generation_max:
        link.append(f"PCIe {gpu.pcie_generation_max} ×{gpu.pcie_width_max or '?'}")  # noqa: RUF001 - as lanes are written
    return link


def _gpu_users(gpu: Gpu, holders: Mapping[int, str]) -> str:
    if not gpu.processes:
        return "no process uses it"
    users = sorted(gpu.processes, key=lambda p: (p.pid not in holders, -(p.used_bytes or 0)))
    named = ", ".join(_user(process, holders) for process in users[:_MOST_NAMED])
    rest = len(users) - _MOST_NAMED
    return f"used by {named}{f' and {rest} more' if rest > 0 else ''}"


def _user(process: GpuProcess, holders: Mapping[int, str]) -> str:
    name = holders.get(process.pid) or process.name or f"process {process.pid}"
    return name if process.used_bytes is None else f"{name} ({size(process.used_bytes)})"


def _no_gpu(report: HardwareReport) -> HardwareCard:
    broken = [p for p in (report.nvidia, report.amd) if isinstance(p, ProbeProblem)]
    if broken:
        return HardwareCard(title="GPU", head=broken[0].what, lines=(broken[0].fix,))
    return HardwareCard(
        title="No GPU",
        head="Training runs on the CPU.",
        lines=("That is slow: small models only.",),
    )


def _cpu(report: HardwareReport, load: float) -> HardwareCard:
    cpu = report.cpu
    if isinstance(cpu, ProbeProblem):
        return HardwareCard(title="CPU", head=cpu.what)
    busy = min(load / max(cpu.allowed_cores, 1), 1.0)
    words = f"load {load:.1f} of {plural(cpu.allowed_cores, 'core')}"
    quota = f"{number(cpu.quota_cores)} cores granted" if cpu.quota_cores else ""
    return HardwareCard(
        title="CPU",
        head=plural(cpu.allowed_cores, "core"),
        rest=f"load {load:.1f}",
        level=Level(ours=0, others=round(busy * _WIDTH), high=False, words=words),
        lines=tuple(line for line in (cpu.model, quota, ", ".join(cpu.extensions)) if line),
    )


def _memory(report: HardwareReport, planned: int) -> HardwareCard:
    memory = report.memory
    if isinstance(memory, ProbeProblem):
        return HardwareCard(title="RAM", head=memory.what)
    total = min(memory.cgroup_limit_bytes or memory.total_bytes, memory.total_bytes)
    free = min(memory.available_bytes, total)
    ours = min(planned, total - free)
    pinned = "no limit" if memory.memlock_bytes is None else f"at most {size(memory.memlock_bytes)}"
    lines = [f"{size(planned)} of it for runs, by their plans" if planned else ""]
    lines.append(f"pinned memory: {pinned}")
    if memory.swap_total_bytes:
        used = memory.swap_total_bytes - memory.swap_free_bytes
        lines.append(f"swap: {size(used)} of {size(memory.swap_total_bytes)} used")
    return HardwareCard(
        title="RAM",
        head=f"{size(free)} free",
        rest=f"of {size(total)}",
        level=_level(ours, total - free - ours, total, f"{size(total - free)} in use"),
        lines=tuple(line for line in lines if line),
        warn=memory.pin_note,
    )


def _drives(report: HardwareReport, wear: Sequence[DriveWear]) -> list[HardwareCard]:
    if isinstance(report.drives, ProbeProblem):
        return [HardwareCard(title="Disk", head=report.drives.what)]
    cards = [_drive(drive, wear) for drive in report.drives.drives if drive.holds_data_dir]
    # Where checkpoints can be links to it, it is on the drive that has a card already.
    if isinstance(report.tier, Tier) and not report.tier.room.linked:
        cards.append(_state_drives(report.tier))
    return cards


def _state_drives(tier: Tier) -> HardwareCard:
    """Return the card of the drives that training state may lie on, where they are others."""
    return HardwareCard(
        title="Drives for training state",
        head=f"{size(tier.room.free_bytes)} free",
        lines=(
            ", ".join(tier.room.folders),
            *(f"{one.disk}: {_worn(one)}" for one in tier.wear),
        ),
    )


def _drive(drive: Drive, wear: Sequence[DriveWear]) -> HardwareCard:
    kinds = {"nvme": "NVMe", "ssd": "SSD", "hdd": "Hard disk"}
    used = drive.total_bytes - drive.free_bytes
    # A hard disk has no writes to use up.
    worn = [_worn(one) for one in wear] if drive.kind in ("nvme", "ssd") else []
    return HardwareCard(
        title=kinds.get(drive.kind, "Disk"),
        head=f"{size(drive.free_bytes)} free",
        rest=f"of {size(drive.total_bytes)}",
        level=_level(0, used, drive.total_bytes, f"{size(used)} in use"),
        lines=(f"{drive.fs_type} at {drive.mount}", *worn),
    )


def _worn(wear: DriveWear) -> str:
    written, rated = wear.written_bytes, wear.rated_write_bytes
    said = []
    if wear.used_share is not None:
        said.append(f"endurance used: {wear.used_share:.0%}")
    elif written is not None and rated:
        said.append(f"endurance used: about {written / rated:.0%} of {rated / 1e12:.0f} TB")
    else:
        said.append(f"endurance used: unknown ({wear.problem or 'the drive does not tell'})")
    if written is not None:
        said.append(f"{written / 1e12:.1f} TB written")
    return ", ".join(said)


def _level(ours: int, others: int, total: int, words: str) -> Level:
    scale = _WIDTH / max(total, 1)
    return Level(
        ours=min(round(ours * scale), _WIDTH),
        others=min(round(others * scale), _WIDTH),
        high=ours + others > _HIGH * total,
        words=words,
    )


def _dotted(figures: Sequence[str]) -> str:
    return " · ".join(figures)
