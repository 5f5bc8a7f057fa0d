"""Whether this machine may fall asleep under a run, or run out of battery."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil

from slidepack.daemon.system.logind import Logind
from slidepack.engine.contract.errors import SlidepackError

ASK_SECONDS: Final = 2.0


class PowerInfo(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="power",
):
    """What supplies the machine, and who decides that it sleeps."""

    battery_percent: float | None
    """None where there is no battery."""
    plugged_in: bool | None
    """None where there is no battery, or it does not tell."""
    systemd: bool
    """Whether systemd runs this machine."""
    awake_code: str
    """Why logind gave no lock against falling asleep, as an error code; empty where it did."""
    awake_why: str
    awake_fix: str


def read_power(
    root: Path,
    logind: Logind,
    *,
    battery: Callable[[], Any] = psutil.sensors_battery,
) -> PowerInfo:
    """Ask the battery, and take the lock of a run for a moment to see whether it is given.

    Args:
        root: the file system's root; holds `run`.
        logind: the login manager, with a time limit of its own.
        battery: `psutil.sensors_battery`, or what a test puts in its place.

    Raises:
        OSError: the battery cannot be read.
    """
    state = battery()
    code = why = fix = ""
    try:
        with logind.inhibit("idle", "The doctor tries whether it can be had", "block"):
            pass
    except SlidepackError as error:
        code, why, fix = error.report.code, error.report.why, error.report.fix
    return PowerInfo(
        battery_percent=None if state is None else float(state.percent),
        plugged_in=None if state is None else state.power_plugged,
        systemd=(root / "run" / "systemd" / "system").is_dir(),
        awake_code=code,
        awake_why=why,
        awake_fix=fix,
    )
