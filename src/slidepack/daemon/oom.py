"""Out-of-memory kills that the kernel counted."""

from pathlib import Path

_VMSTAT = Path("/proc/vmstat")


def oom_kill_count(vmstat: Path = _VMSTAT) -> int:
    """Return how many processes this kernel killed for memory since boot; 0 where it won't say."""
    try:
        text = vmstat.read_text("ascii")
    except OSError:
        return 0
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0
