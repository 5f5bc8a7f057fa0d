"""The kernel's limits (`ulimit`) against what a run asks for."""

from collections.abc import Iterator
from typing import Final

from slidepack.daemon.doctor.cards import training_gpus
from slidepack.daemon.doctor.finding import Finding, Level, gib
from slidepack.daemon.probe.limits import Limits, Whose
from slidepack.daemon.probe.memory import MemoryInfo
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.setup import SetupReport

MIN_OPEN_FILES: Final = 1024
"""What Linux gives by default: enough for a daemon with its database, its pages and its workers."""

MIN_FILE_BYTES: Final = 10 * 10**9
"""A checkpoint of a small model fits below this."""

OWNERS: Final[dict[Whose, str]] = {"daemon": "of the running daemon", "shell": "of this shell"}

_LASTING: Final = (
    "In the systemd unit: {unit} (a user's service needs it in `sudo systemctl edit "
    "user@.service` too). For a shell: `* - {name} {value}` in "
    "/etc/security/limits.d/slidepack.conf, then log in again."
)


def locked_memory_findings(report: HardwareReport, setup: SetupReport | None) -> Iterator[Finding]:
    """Judge `ulimit -l`, the running daemon's where it is known."""
    memory = report.memory
    # Only transfers to a card pin memory.
    if not isinstance(memory, MemoryInfo) or not training_gpus(report):
        return
    locked, whose = memory.memlock_bytes, ""
    if setup is not None and isinstance(setup.limits, Limits):
        locked, whose = setup.limits.locked_bytes, f" {OWNERS[setup.limits.whose]}"
    if locked is not None and locked < memory.total_bytes // 2:
        yield Finding(
            level="note",
            title="The limit on locked memory is low.",
            evidence=f"ulimit -l{whose} is {gib(locked)}, the machine has "
            f"{gib(memory.total_bytes)}. A driver that counts pinned memory against it leaves only "
            "a small ring to stream layers through, which is slower.",
            fix=_LASTING.format(unit="LimitMEMLOCK=infinity", name="memlock", value="unlimited"),
        )


def limit_findings(report: HardwareReport, setup: SetupReport) -> Iterator[Finding]:
    """Judge the limits on files and on address space."""
    limits = setup.limits
    if not isinstance(limits, Limits):
        return
    owner = OWNERS[limits.whose]
    if limits.open_files is not None and limits.open_files < MIN_OPEN_FILES:
        yield Finding(
            level="note",
            title="Few files may be open at once.",
            evidence=f"ulimit -n {owner} is {limits.open_files}: the daemon and its workers can "
            "end with 'Too many open files'.",
            fix=f"For now: `ulimit -n {MIN_OPEN_FILES}`, then start the daemon anew. "
            + _LASTING.format(unit="LimitNOFILE=65536", name="nofile", value="65536"),
        )
    if limits.file_size_bytes is not None and limits.file_size_bytes < MIN_FILE_BYTES:
        yield Finding(
            level="note",
            title="Large files may not be written.",
            evidence=f"ulimit -f {owner} is {gib(limits.file_size_bytes)}; a checkpoint or a "
            "model that is larger fails.",
            fix="`ulimit -f unlimited`, then start the daemon anew. "
            + _LASTING.format(unit="LimitFSIZE=infinity", name="fsize", value="unlimited"),
        )
    if limits.address_space_bytes is not None:
        # A driver maps all of its memory and the machine's into one range of addresses.
        level: Level = "problem" if training_gpus(report) else "note"
        yield Finding(
            level=level,
            title="Address space is limited, which GPU drivers do not bear.",
            evidence=f"ulimit -v {owner} is {gib(limits.address_space_bytes)}; a driver reserves "
            "more than VRAM and main memory together, and calls a refusal 'out of memory'.",
            fix="`ulimit -v unlimited`, then start the daemon anew. "
            + _LASTING.format(unit="LimitAS=infinity", name="as", value="unlimited"),
        )
