"""How worn a solid-state drive is, and what it may be expected to take.

The drive's own log needs rights that an ordinary user seldom has; without them its size is all that
is known.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from slidepack.daemon.probe.drive_kind import kind_of_disk
from slidepack.daemon.probe.kernel_files import read_int, read_text

__all__ = ["DriveWear", "ask_tool", "read_wear"]

_SECTOR_BYTES: Final = 512
_NVME_UNIT_BYTES: Final = 512_000
"""NVMe drives count in thousands of sectors."""
_FULL_WRITES: Final = 200
"""Times its size that a drive is guessed to take: what those with four bits a cell are rated for;
most others are rated for 600."""
_TELLING_SHARE: Final = 0.05
"""Of its life, from which on a drive's own figure for what is used tells what all of it is."""
_TOOL_SECONDS: Final = 5.0

Ask = Callable[[Sequence[str]], str]
"""Runs a command and returns what it prints; empty where it could not."""


class DriveWear(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One drive."""

    disk: str
    """As the kernel names it: `nvme0n1`."""
    model: str
    size_bytes: int | None
    written_bytes: int | None
    """In its life so far; None where it does not tell."""
    used_share: float | None
    """Of its rated life, by its own count; above 1 where it has outlived that."""
    rated_write_bytes: float | None
    """What it takes in its life; None where that is not known, or it does not wear out so."""
    rated_source: str
    """Where that is from."""
    problem: str
    """Why its log was not read; empty where it was."""


def ask_tool(command: Sequence[str]) -> str:
    """Run a tool and return what it prints; empty where it is missing, refused or too slow."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    # smartctl's exit status has a bit for every warning of the drive.
    return done.stdout


def read_wear(root: Path, disk: Path, *, ask: Ask = ask_tool) -> DriveWear:
    """Read what a drive tells of itself.

    Args:
        root: the file system's root; holds `dev`.
        disk: its folder in `sys`.
        ask: runs `smartctl` and `nvme`.
    """
    sectors = read_int(disk / "size")
    size = None if sectors is None else sectors * _SECTOR_BYTES
    node = root / "dev" / _log_node(disk.name)
    if os.access(node, os.R_OK):
        written, used = _log(node, ask)
        problem = (
            ""
            if (written, used) != (None, None)
            else ("neither smartctl nor nvme is installed and shows its log")
        )
    else:
        written = used = None
        problem = f"its log needs the right to read {node}, which root has"
    rated, source = _rated(disk, size, written, used)
    return DriveWear(
        disk=disk.name,
        model=read_text(disk / "device" / "model") or "",
        size_bytes=size,
        written_bytes=written,
        used_share=used,
        rated_write_bytes=rated,
        rated_source=source,
        problem=problem,
    )


def _log_node(name: str) -> str:
    """Return the device that answers for a drive: an NVMe drive's controller."""
    return name.rpartition("n")[0] if name.startswith("nvme") else name


def _rated(
    disk: Path, size: int | None, written: int | None, used: float | None
) -> tuple[float | None, str]:
    if written and used is not None and used >= _TELLING_SHARE:
        return written / used, f"by its own count, {used:.0%} is used after {written / 1e12:.1f} TB"
    if size is None or kind_of_disk(disk) not in ("nvme", "ssd"):
        return None, ""
    return _FULL_WRITES * float(size), (
        f"a cautious guess, {_FULL_WRITES} times its size; its data sheet may say more"
    )


def _log(node: Path, ask: Ask) -> tuple[int | None, float | None]:
    """Return the bytes written and the share of its life used, where a tool shows them."""
    commands = [["smartctl", "-j", "-A", "-i", str(node)]]
    if "nvme" in node.name:
        commands.append(["nvme", "smart-log", "-o", "json", str(node)])
    for command in commands:
        answer = _decoded(ask(command))
        written, used = _written(answer), _used(answer)
        if written is not None or used is not None:
            return written, used
    return None, None


def _decoded(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _written(answer: dict[str, Any]) -> int | None:
    units = _number(answer.get("nvme_smart_health_information_log"), "data_units_written")
    if units is None:
        units = _number(answer, "data_units_written")
    if units is not None:
        return int(units * _NVME_UNIT_BYTES)
    block = _number(answer, "logical_block_size") or _SECTOR_BYTES
    for attribute in _attributes(answer):
        if attribute.get("name") in ("Total_LBAs_Written", "Host_Writes_LBAs"):
            raw = _number(attribute.get("raw"), "value")
            return None if raw is None else int(raw * block)
    return None


def _used(answer: dict[str, Any]) -> float | None:
    health = answer.get("nvme_smart_health_information_log")
    for found in (
        _number(health, "percentage_used"),
        # Of nvme-cli, older and newer.
        _number(answer, "percent_used"),
        _number(answer, "percentage_used"),
        _number(answer.get("endurance_used"), "current_percent"),
    ):
        if found is not None:
            return found / 100
    for attribute in _attributes(answer):
        # These count down from 100.
        if attribute.get("name") in ("Wear_Leveling_Count", "Media_Wearout_Indicator"):
            left = _number(attribute, "value")
            return None if left is None else max(0.0, 1.0 - left / 100)
    return None


def _attributes(answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    table = answer.get("ata_smart_attributes")
    rows = table.get("table") if isinstance(table, dict) else None
    if isinstance(rows, list):
        yield from (row for row in rows if isinstance(row, dict))


def _number(answer: object, name: str) -> float | None:
    found = answer.get(name) if isinstance(answer, dict) else None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if is_number and found is not None else None
