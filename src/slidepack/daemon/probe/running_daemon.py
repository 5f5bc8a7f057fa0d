"""The daemon of a data directory, if one runs: its limits and environment are those of the runs."""

from pathlib import Path

from slidepack.daemon.instance import read_address
from slidepack.daemon.probe.kernel_files import read_text
from slidepack.engine.contract.errors import SlidepackError


def daemon_pid(root: Path, data_dir: Path) -> int | None:
    """Return the pid of the daemon that runs on a data directory; None where none does."""
    try:
        pid = read_address(data_dir).pid
    except SlidepackError:
        return None
    # The file outlives a daemon that was killed, and the number may be another program's by now.
    return pid if "slidepack" in (read_text(root / "proc" / str(pid) / "cmdline") or "") else None
