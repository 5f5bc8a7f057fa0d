"""The kernel's limits on a process (`ulimit`), and its control groups'."""

from pathlib import Path
from typing import Literal

import msgspec

from slidepack.daemon.probe.cgroup import cgroup_dirs, lowest_memory_limit

Whose = Literal["daemon", "shell"]
"""Runs inherit limits and environment from the daemon; without one, this shell's are the guess."""


class Limits(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="limits",
):
    """Soft limits, and what the control groups allow; None where there is no limit."""

    whose: Whose
    open_files: int | None
    locked_bytes: int | None
    address_space_bytes: int | None
    file_size_bytes: int | None
    cgroup_memory_bytes: int | None
    """The lowest limit of the control groups around the process."""


def read_limits(root: Path, daemon_pid: int | None) -> Limits:
    """Read the limits of the running daemon, or of this process where none runs.

    Raises:
        OSError: the limits cannot be read.
    """
    process = "self" if daemon_pid is None else str(daemon_pid)
    text = (root / "proc" / process / "limits").read_text("utf-8")
    return Limits(
        whose="shell" if daemon_pid is None else "daemon",
        open_files=soft_limit(text, "Max open files"),
        locked_bytes=soft_limit(text, "Max locked memory"),
        address_space_bytes=soft_limit(text, "Max address space"),
        file_size_bytes=soft_limit(text, "Max file size"),
        cgroup_memory_bytes=lowest_memory_limit(cgroup_dirs(root, "memory", process)),
    )


def soft_limit(limits: str, name: str) -> int | None:
    """Return one soft limit of the text of /proc/PID/limits; None where there is none."""
    for line in limits.splitlines():
        if line.startswith(name):
            soft = (line.removeprefix(name).split() or [""])[0]
            return int(soft) if soft.isdigit() else None
    return None
