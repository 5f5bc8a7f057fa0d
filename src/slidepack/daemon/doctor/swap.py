"""Swap beside a run that fills main memory, and the kernel's rules about promising memory."""

from collections.abc import Iterator
from typing import Final

from slidepack.daemon.doctor.finding import Finding, gib
from slidepack.daemon.probe.memory import MemoryInfo
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.setup import SetupReport
from slidepack.daemon.probe.virtual_memory import SwapArea, VirtualMemory
from slidepack.daemon.probe.wsl import WslInfo

_FULL_PART: Final = 0.9
_MIN_MAP_COUNT: Final = 65_530
"""The kernel's own default."""
_MAKE_SWAP_FILE: Final = (
    "To add 8 GiB on an ext4 or XFS drive: `sudo fallocate -l 8G /swapfile && "
    "sudo chmod 600 /swapfile && sudo mkswap /swapfile && sudo swapon /swapfile`, and "
    "`/swapfile none swap defaults 0 0` in /etc/fstab; btrfs has `btrfs filesystem mkswapfile`."
)


def swap_findings(report: HardwareReport, setup: SetupReport) -> Iterator[Finding]:
    """Judge the swap areas and the `vm` settings."""
    memory = setup.virtual_memory
    if not isinstance(memory, VirtualMemory):
        return
    if memory.swap:
        yield from _areas(memory.swap)
    else:
        yield _no_swap(report)
    yield from _promises(memory)


def _no_swap(report: HardwareReport) -> Finding:
    inside_wsl = isinstance(report.wsl, WslInfo) and report.wsl.version == "wsl2"
    limit = report.memory.cgroup_limit_bytes if isinstance(report.memory, MemoryInfo) else None
    fix = _MAKE_SWAP_FILE
    if inside_wsl:
        fix = r"Remove swap=0 from [wsl2] in %UserProfile%\.wslconfig, then `wsl --shutdown`."
    elif limit is not None:
        fix = "Inside a container swap is the host's to give (`--memory-swap`)."
    return Finding(
        level="note",
        title="There is no swap.",
        evidence="Slidepack starts only what fits into free memory, and what it pins never goes to "
        "swap. But without any, idle programs keep their memory, and when another one grows the "
        "kernel kills the largest: the run.",
        fix=fix,
    )


def _areas(areas: tuple[SwapArea, ...]) -> Iterator[Finding]:
    size = sum(area.size_bytes for area in areas)
    used = sum(area.used_bytes for area in areas)
    listed = ", ".join(f"{area.path} ({area.kind}, {gib(area.size_bytes)})" for area in areas)
    if used > _FULL_PART * size:
        yield Finding(
            level="note",
            title="Swap is full.",
            evidence=f"{gib(used)} of {gib(size)} on {listed}: memory was short, and the next "
            "program that grows is killed, or kills the run.",
            fix="Close what is not needed (browsers, games), or restart the machine. "
            + _MAKE_SWAP_FILE,
        )
    slow = [area for area in areas if area.kind in ("hdd", "network")]
    for area in slow:
        yield Finding(
            level="note",
            title="Swap is on a slow drive.",
            evidence=f"{area.path} ({area.kind}): beside a large run the whole desktop waits "
            "for it.",
            fix=f"`sudo swapoff {area.path}` and take its line out of /etc/fstab, then make a "
            f"swap file on an SSD. {_MAKE_SWAP_FILE}",
        )
    if slow or used > _FULL_PART * size:
        return
    zram = all(area.kind == "zram" for area in areas)
    yield Finding(
        level="ok",
        title="Swap is compressed memory (zram)." if zram else "Swap",
        evidence=f"{gib(size)}, {gib(used)} used: {listed}."
        + (" It takes its room from main memory itself, so it adds none to a run." * zram),
        fix="",
    )


def _promises(memory: VirtualMemory) -> Iterator[Finding]:
    if memory.strict_overcommit:
        promised = " of ".join(
            gib(value)
            for value in (memory.committed_bytes, memory.commit_limit_bytes)
            if value is not None
        )
        yield Finding(
            level="note",
            title="The kernel promises no more memory than it has.",
            evidence=f"vm.overcommit_memory is 2; {promised or 'an unknown part'} is promised. GPU "
            "drivers and PyTorch reserve far more than they use, and are refused.",
            fix="`sudo sysctl vm.overcommit_memory=0`; to keep it, change the line in "
            "/etc/sysctl.conf or /etc/sysctl.d.",
        )
    if memory.max_map_count is not None and memory.max_map_count < _MIN_MAP_COUNT:
        yield Finding(
            level="note",
            title="A process may have few mappings.",
            evidence=f"vm.max_map_count is {memory.max_map_count}; Linux gives {_MIN_MAP_COUNT}.",
            fix=f"`sudo sysctl vm.max_map_count={_MIN_MAP_COUNT}`; to keep it, change the line in "
            "/etc/sysctl.conf or /etc/sysctl.d.",
        )
