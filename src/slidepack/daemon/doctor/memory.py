"""Main memory, and what keeps this process from it."""

from collections.abc import Iterator

from slidepack.daemon.doctor.finding import Finding, gib
from slidepack.daemon.probe.limits import Limits
from slidepack.daemon.probe.memory import MemoryInfo
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.setup import SetupReport


def memory_findings(report: HardwareReport, setup: SetupReport | None) -> Iterator[Finding]:
    """Judge the amount, the control group's limit and the wall on pinned memory."""
    memory = report.memory
    if not isinstance(memory, MemoryInfo):
        return
    limit, whose = memory.cgroup_limit_bytes, "this process"
    if setup is not None and isinstance(setup.limits, Limits):
        limit = setup.limits.cgroup_memory_bytes
        whose = "the running daemon" if setup.limits.whose == "daemon" else whose
    if limit is not None and limit < memory.total_bytes:
        yield Finding(
            level="note",
            title=f"A control group gives {whose} less than the machine's memory.",
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
