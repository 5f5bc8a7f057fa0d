"""Out-of-memory kills that the kernel counted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slidepack.daemon.probe.cgroup import cgroup_dirs
from slidepack.daemon.probe.kernel_files import read_text

_ROOT: Final = Path("/")


@dataclass(frozen=True, slots=True)
class OomKills:
    """Counters of the kernel; they only rise."""

    machine: int
    """Processes killed for memory since the boot; 0 where the kernel won't say."""
    group: int
    """Of those, the ones killed for the memory limit of our own control groups."""

    def since(self, earlier: "OomKills") -> str:
        """Return what the kernel counted after another reading, in words; empty for nothing."""
        if self.group > earlier.group:
            return (
                f"memory.events of its control group: oom_kill rose from {earlier.group} "
                f"to {self.group}"
            )
        if self.machine > earlier.machine:
            return f"/proc/vmstat: oom_kill rose from {earlier.machine} to {self.machine}"
        return ""


def read_oom_kills(root: Path = _ROOT) -> OomKills:
    """Read the counters; a worker is in its daemon's control groups."""
    groups = (folder / "memory.events" for folder in cgroup_dirs(root, "memory"))
    return OomKills(
        machine=_counter(root / "proc" / "vmstat"),
        group=max((_counter(path) for path in groups), default=0),
    )


def _counter(path: Path) -> int:
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return 0
