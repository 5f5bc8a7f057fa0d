"""The processor: what it is, and how much of it this process may use."""

import os
import platform
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.probe.cgroup import cgroup_dirs
from slidepack.daemon.probe.kernel_files import list_names, read_int, read_text

EXTENSIONS: Final = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "neon",
    "asimd",
    "bf16",
    "i8mm",
    "sve",
    "sve2",
)
"""The vector extensions that decide how fast the CPU optimizer and conversions run."""


class CpuInfo(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="cpu",
):
    """The processor."""

    model: str
    physical_cores: int
    logical_cores: int
    allowed_cores: int
    """Logical cores in this process's affinity mask, which cgroup cpusets narrow too."""
    quota_cores: float | None
    """Cores' worth of time that the control group grants; None where it sets no limit."""
    extensions: tuple[str, ...]
    """Those of `EXTENSIONS` that the processor has."""


def read_cpu(root: Path) -> CpuInfo:
    """Read the processor from /proc/cpuinfo, sysfs and this process's limits.

    Raises:
        OSError: /proc/cpuinfo cannot be read.
        ValueError: it lists no processor.
    """
    cpuinfo = root / "proc" / "cpuinfo"
    fields: dict[str, str] = {}
    logical = 0
    for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        logical += key.strip() == "processor"
        fields.setdefault(key.strip(), value.strip())
    if not logical:
        raise ValueError(f"{cpuinfo} lists no processor")
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return CpuInfo(
        model=fields.get("model name") or _model_of_board(root) or platform.machine(),
        physical_cores=_physical_cores(root) or logical,
        logical_cores=logical,
        allowed_cores=len(os.sched_getaffinity(0)),
        quota_cores=_quota_cores(root),
        extensions=tuple(name for name in EXTENSIONS if name in flags),
    )


def _model_of_board(root: Path) -> str:
    # ARM's cpuinfo holds part numbers only; the device tree names the board.
    return (read_text(root / "proc" / "device-tree" / "model") or "").strip("\0")


def _physical_cores(root: Path) -> int:
    cpus = root / "sys" / "devices" / "system" / "cpu"
    siblings = {
        read_text(cpus / name / "topology" / "thread_siblings_list") for name in list_names(cpus)
    }
    return len(siblings - {None})


def _quota_cores(root: Path) -> float | None:
    quotas = []
    for folder in cgroup_dirs(root, "cpu"):
        quota, period = _quota_and_period(folder)
        if quota is not None and quota > 0 and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _quota_and_period(folder: Path) -> tuple[int | None, int | None]:
    version_2 = (read_text(folder / "cpu.max") or "").split()
    if len(version_2) == 2:
        # `max 100000` means no limit.
        return (int(version_2[0]), int(version_2[1])) if version_2[0].isdigit() else (None, None)
    return read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
