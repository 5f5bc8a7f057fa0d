"""Which processes hold a graphics card, as /proc tells it."""

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from slidepack.daemon.probe.gpu import GpuProcess
from slidepack.daemon.probe.kernel_files import list_names, read_fields, read_text

_COMM_LIMIT: Final = 15
_VRAM_KEYS: Final = ("drm-memory-vram", "drm-resident-vram", "drm-total-vram")
_ENGINE_KEYS: Final = ("drm-engine-gfx", "drm-engine-compute")
_UNITS: Final = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def process_name(proc_root: Path, pid: int) -> str:
    """Return the name of a process's executable; empty where the process cannot be seen."""
    comm = read_text(proc_root / str(pid) / "comm") or ""
    if len(comm) < _COMM_LIMIT:
        return comm
    # The kernel cuts comm at 15 bytes; the command line has the whole name.
    command = (read_text(proc_root / str(pid) / "cmdline") or "").split("\0")[0]
    full = os.path.basename(command)
    return full if full.startswith(comm) else comm


def drm_users(proc_root: Path, pci_addresses: Collection[str]) -> dict[str, tuple[GpuProcess, ...]]:
    """Return who holds each card, by PCI address, from `drm-*` keys in /proc/PID/fdinfo.

    A process whose file descriptors this user may not list is left out.
    """
    users: dict[str, list[GpuProcess]] = {address: [] for address in pci_addresses}
    for pid in (int(name) for name in list_names(proc_root) if name.isdigit()):
        for address, use in _use_of(proc_root / str(pid)).items():
            if address in users:
                name = process_name(proc_root, pid)
                users[address].append(
                    GpuProcess(
                        pid=pid,
                        name=name,
                        used_bytes=use.vram_bytes,
                        busy_nanoseconds=use.busy_nanoseconds,
                    )
                )
    return {address: tuple(found) for address, found in users.items()}


class _Use(NamedTuple):
    vram_bytes: int | None
    busy_nanoseconds: int | None


def _use_of(process: Path) -> dict[str, _Use]:
    clients: dict[tuple[str, str], _Use] = {}
    for fd in list_names(process / "fd"):
        # Reading every fdinfo of every process takes seconds; a link is cheap to look at.
        if not _is_dri(process / "fd" / fd):
            continue
        fields = read_fields(process / "fdinfo" / fd, ":")
        address = fields.get("drm-pdev", "").lower()
        if address:
            # Duplicated descriptors share one client, which counts once.
            client = fields.get("drm-client-id", fd)
            clients[address, client] = _Use(_vram_bytes(fields), _busy_nanoseconds(fields))
    totals: dict[str, _Use] = {}
    for (address, _), use in clients.items():
        before = totals.get(address, _Use(None, None))
        totals[address] = _Use(
            _sum(before.vram_bytes, use.vram_bytes),
            _sum(before.busy_nanoseconds, use.busy_nanoseconds),
        )
    return totals


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else (one or 0) + other


def _is_dri(link: Path) -> bool:
    try:
        return os.readlink(link).startswith("/dev/dri/")
    except OSError:
        return False


def _vram_bytes(fields: dict[str, str]) -> int | None:
    for key in _VRAM_KEYS:
        match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", fields.get(key, ""))
        if match and match[2].lower() in _UNITS:
            return int(match[1]) * _UNITS[match[2].lower()]
    return None


def _busy_nanoseconds(fields: dict[str, str]) -> int | None:
    busy = None
    for key in _ENGINE_KEYS:
        match = re.fullmatch(r"(\d+)\s*ns", fields.get(key, ""))
        busy = _sum(busy, int(match[1]) if match else None)
    return busy
