"""Installs the daemon as a systemd service, removes it, and says how it is."""

import grp
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.paths import disk_error
from slidepack.daemon.system.system_user import (
    SYSTEM_USER,
    require_readable,
    require_root,
    require_user,
    user_name,
)
from slidepack.daemon.system.systemctl import CHANGE_SECONDS, Manager
from slidepack.daemon.system.unit_file import MARKER, UNIT_NAME, places, render, this_command
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import write_atomic

_SYSTEM_FOLDER: Final = Path("/etc/systemd/system")
_PROPERTIES: Final = (
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "FragmentPath",
    "MainPID",
    "ActiveEnterTimestamp",
    "WatchdogUSec",
    "NRestarts",
    "Result",
    "StatusText",
)


class Installed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `install` did."""

    unit: str
    """The file that it wrote."""
    command: tuple[str, ...]
    linger: bool | None
    """Whether the service goes on without a login; None for the machine's."""
    hints: tuple[str, ...]
    """What else is worth doing."""
    log: str
    """The command that shows the log."""


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the service is."""

    installed: bool
    unit: str
    """The unit's file, empty where there is none."""
    ours: bool
    """Whether `slidepack service install` wrote it."""
    enabled: str
    """systemd's word: `enabled`, `disabled`, `static`; empty where there is no unit."""
    active: str
    """systemd's words: `active (running)`."""
    status: str
    """What the daemon says of itself."""
    result: str
    """`success`, or why it ended last: `exit-code`, `watchdog`, `signal`."""
    main_pid: int | None
    since: float | None
    """Unix time at which it became active."""
    restarts: int
    watchdog: str
    """systemd's word: `5min`; empty where it has none."""
    exposure: str | None
    """Verdict of `systemd-analyze security`; None where it is not there."""
    linger: bool | None
    log: str


class ServiceUnit:
    """The unit of this user, or of the machine."""

    def __init__(
        self,
        manager: Manager,
        *,
        environment: Mapping[str, str] = os.environ,
        folder: Path | None = None,
        root: Path = Path("/"),
        installation: Sequence[Path] | None = None,
    ) -> None:
        """Bind the manager.

        Args:
            manager: of the user or of the machine.
            environment: of the shell.
            folder: where units are; None takes the manager's usual one.
            root: where the device files of the machine are looked for.
            installation: files that the machine's service must be able to run; None takes this
                installation's.
        """
        self._manager = manager
        self._system = manager.system
        self._environment = environment
        self._folder = folder or (_SYSTEM_FOLDER if manager.system else _user_folder(environment))
        self._root = root
        if installation is None:
            installation = (Path(this_command()[0]), Path(sys.executable), Path(__file__))
        self._installation = installation

    @property
    def path(self) -> Path:
        """The unit's file."""
        return self._folder / UNIT_NAME

    @property
    def log_command(self) -> str:
        """The command that shows the log."""
        return f"journalctl {'' if self._system else '--user '}-u slidepack"

    def text(self, data_dir: Path | None) -> str:
        """Return the unit that `install` would write."""
        command = this_command()
        if not self._system:
            variables = places(self._environment, data_dir)
            return render(system=False, command=command, variables=variables)
        return render(
            system=True,
            command=command,
            variables={} if data_dir is None else {"SLIDEPACK_HOME": str(data_dir)},
            writable=() if data_dir is None else (data_dir,),
            groups=[group.gr_name for group in grp.getgrall()],
        )

    def install(self, data_dir: Path | None, *, linger: bool) -> Installed:
        """Write the unit, start it, and have it start with every login or boot.

        Args:
            data_dir: where its files go; None takes the usual place.
            linger: let the user's service run without a login.

        Raises:
            SlidepackError: DAEMON-NO-SYSTEMD, DAEMON-SERVICE-FAILED, DISK-UNWRITABLE or DISK-FULL.
        """
        self._manager.require()
        self._refuse_foreign()
        if self._system:
            require_root()
            require_readable(self._installation)
            require_user(self._manager)
        if data_dir is not None:
            self._create(data_dir)
        running = self._is_active()
        changed = self._write(self.text(data_dir))
        self._manager.run("daemon-reload")
        if linger and not self._system:
            self._manager.enable_linger(user_name())
        self._manager.run("enable", "--now", UNIT_NAME, seconds=CHANGE_SECONDS)
        if running and changed:
            # Its jobs checkpoint and go on under the new unit.
            self._manager.run("restart", UNIT_NAME, seconds=CHANGE_SECONDS)
        lingers = None if self._system else self._manager.lingers(user_name()) is True
        return Installed(
            unit=str(self.path),
            command=tuple(this_command()),
            linger=lingers,
            hints=tuple(self._hints(lingers)),
            log=self.log_command,
        )

    def uninstall(self) -> bool:
        """Stop the service and remove what `install` wrote; return False where there was nothing.

        Jobs that run write a checkpoint first; all data stay.

        Raises:
            SlidepackError: DAEMON-NO-SYSTEMD, DAEMON-SERVICE-FAILED, DISK-UNWRITABLE or DISK-FULL.
        """
        self._manager.require()
        if not self.path.exists():
            return False
        self._refuse_foreign()
        if self._system:
            require_root()
        self._manager.run("disable", "--now", UNIT_NAME, seconds=CHANGE_SECONDS)
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise disk_error(error, self.path) from error
        self._manager.run("daemon-reload")
        return True

    def status(self) -> ServiceStatus:
        """Return how the service is.

        Raises:
            SlidepackError: DAEMON-NO-SYSTEMD or DAEMON-SERVICE-FAILED.
        """
        shown = self._manager.properties(UNIT_NAME, _PROPERTIES)
        fragment = shown.get("FragmentPath", "")
        installed = shown.get("LoadState") == "loaded"
        watchdog = shown.get("WatchdogUSec", "")
        return ServiceStatus(
            installed=installed,
            unit=fragment,
            ours=bool(fragment) and _is_ours(Path(fragment)),
            enabled=shown.get("UnitFileState", ""),
            active=f"{shown.get('ActiveState', 'unknown')} ({shown.get('SubState', '')})",
            status=shown.get("StatusText", ""),
            result=shown.get("Result", ""),
            main_pid=_number(shown.get("MainPID", "")) or None,
            since=_unix_time(shown.get("ActiveEnterTimestamp", "")),
            restarts=_number(shown.get("NRestarts", "")),
            watchdog="" if watchdog in ("0", "infinity") else watchdog,
            exposure=self._manager.exposure(fragment) if installed and fragment else None,
            linger=None if self._system else self._manager.lingers(user_name()),
            log=self.log_command,
        )

    def _is_active(self) -> bool:
        return self._manager.properties(UNIT_NAME, ["ActiveState"]).get("ActiveState") == "active"

    def _refuse_foreign(self) -> None:
        if self.path.exists() and not _is_ours(self.path):
            raise SlidepackError(
                "DAEMON-SERVICE-FAILED",
                f"{self.path} was not written by `slidepack service install`.",
                why=f"it lacks the line {MARKER!r}",
                fix="Move it away, then run this command again.",
            )

    def _write(self, text: str) -> bool:
        """Write the unit; return whether it differs from what was there."""
        try:
            if self.path.exists() and self.path.read_text("utf-8") == text:
                return False
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, text.encode())
            self.path.chmod(0o644)
        except OSError as error:
            raise disk_error(error, self.path) from error
        return True

    def _create(self, data_dir: Path) -> None:
        try:
            new = not data_dir.exists()
            data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._system and new:
                shutil.chown(data_dir, SYSTEM_USER, SYSTEM_USER)
        except OSError as error:
            raise disk_error(error, data_dir) from error

    def _hints(self, lingers: bool | None) -> list[str]:
        hints = []
        if lingers is False:
            hints.append(
                "It ends when you log out. So that nights survive that: "
                "slidepack service install --linger"
            )
        nvidia = (self._root / "proc/driver/nvidia").exists()
        if nvidia and not self._system and not (self._root / "dev/nvidia-uvm").exists():
            # The helper that makes the file is setuid, which a hardened service may not use.
            hints.append(
                "/dev/nvidia-uvm is missing, and the service cannot make it: "
                "echo nvidia_uvm | sudo tee /etc/modules-load.d/nvidia-uvm.conf, then start anew"
            )
        return hints


def _user_folder(environment: Mapping[str, str]) -> Path:
    config = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "systemd" / "user"


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text("utf-8", errors="replace").startswith(MARKER)
    except OSError:
        return False


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _unix_time(text: str) -> float | None:
    found = re.fullmatch(r"@(\d+)", text)
    # 0 is systemd's word for never.
    return float(found[1]) or None if found else None
