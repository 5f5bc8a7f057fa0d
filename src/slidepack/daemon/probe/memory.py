"""Main memory: how much there is, how much this process may take, and how much it may pin."""

import re
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.probe.cgroup import cgroup_dirs, lowest_memory_limit, memory_limit
from slidepack.daemon.probe.kernel_files import read_text
from slidepack.daemon.probe.limits import soft_limit
from slidepack.daemon.probe.wsl import read_wsl

WSL_PIN_NOTE: Final = (
    "Under WSL 2 pinned memory ends at about 0.5 to 1 GiB, whatever the machine has; "
    "layers then stream through a small pinned ring."
)


class MemoryInfo(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="memory",
):
    """Main memory, in bytes."""

    total_bytes: int
    available_bytes: int
    """What this process can take without swapping: the kernel's own estimate, or what its control
    group has left where that is less."""
    swap_total_bytes: int
    swap_free_bytes: int
    cgroup_limit_bytes: int | None
    """The lowest limit of the control groups around this process; None where there is none."""
    memlock_bytes: int | None
    """The soft limit on locked (pinned) memory; None where there is none."""
    pin_note: str = ""
    """A known wall on pinned memory that no limit shows; empty where there is none."""


def read_memory(root: Path) -> MemoryInfo:
    """Read main memory from /proc/meminfo, the control groups and this process's limits.

    Raises:
        OSError: /proc/meminfo or the kernel's release cannot be read.
        ValueError: /proc/meminfo lacks a line.
    """
    meminfo = (root / "proc" / "meminfo").read_text(encoding="utf-8")
    groups = cgroup_dirs(root, "memory")
    process_limits = read_text(root / "proc" / "self" / "limits") or ""
    left = [room for folder in groups if (room := _cgroup_room(folder)) is not None]
    return MemoryInfo(
        total_bytes=_meminfo_bytes(meminfo, "MemTotal"),
        available_bytes=min([_meminfo_bytes(meminfo, "MemAvailable"), *left]),
        swap_total_bytes=_meminfo_bytes(meminfo, "SwapTotal"),
        swap_free_bytes=_meminfo_bytes(meminfo, "SwapFree"),
        cgroup_limit_bytes=lowest_memory_limit(groups),
        memlock_bytes=soft_limit(process_limits, "Max locked memory"),
        pin_note=WSL_PIN_NOTE if read_wsl(root).version == "wsl2" else "",
    )


def _meminfo_bytes(meminfo: str, key: str) -> int:
    match = re.search(rf"^{key}:\s+(\d+) kB$", meminfo, re.MULTILINE)
    if match is None:
        raise ValueError(f"/proc/meminfo has no {key} line")
    return int(match[1]) * 1024


def _cgroup_room(folder: Path) -> int | None:
    """Return what a control group may still take, or None where it has no limit.

    Pages of files that nobody uses count as free: the kernel drops them first.
    """
    limit = memory_limit(folder)
    used = read_text(folder / "memory.current") or read_text(folder / "memory.usage_in_bytes") or ""
    if limit is None or not used.isdigit():
        return None
    match = re.search(
        r"^inactive_file (\d+)$", read_text(folder / "memory.stat") or "", re.MULTILINE
    )
    reclaimable = int(match[1]) if match else 0
    return max(0, limit - int(used) + reclaimable)
