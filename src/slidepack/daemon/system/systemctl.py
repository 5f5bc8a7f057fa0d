"""Runs systemctl and its kin; every call ends in time, and what it complains of is the evidence."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from slidepack.engine.contract.errors import SlidepackError

_ASK_SECONDS: Final = 15.0
CHANGE_SECONDS: Final = 420.0
"""A start waits until the daemon is ready, a stop until its workers have checkpointed."""
_NO_MANAGER: Final = (
    "not been booted with systemd",
    "Failed to connect to bus",
    "Failed to connect to system scope bus",
    "Failed to connect to user scope bus",
    "Host is down",
)


class Manager:
    """The service manager of this user, or of the machine."""

    def __init__(self, *, system: bool, environment: Mapping[str, str] = os.environ) -> None:
        """Bind one of the two managers."""
        self.system = system
        # Messages in English: they are searched for.
        self._environment = {**environment, "LC_ALL": "C", "SYSTEMD_COLORS": "0"}
        self._scope = [] if system else ["--user"]

    def require(self) -> None:
        """Make sure that the manager answers.

        Raises:
            SlidepackError: DAEMON-NO-SYSTEMD or DAEMON-SERVICE-FAILED.
        """
        self.run("show", "--property=Version")

    def run(self, *arguments: str, seconds: float = _ASK_SECONDS) -> str:
        """Run `systemctl` and return what it printed.

        Raises:
            SlidepackError: DAEMON-NO-SYSTEMD or DAEMON-SERVICE-FAILED.
        """
        return self._run(["systemctl", *self._scope, "--no-pager", *arguments], seconds)

    def properties(self, unit: str, names: Sequence[str]) -> dict[str, str]:
        """Return properties of a unit; those of an unknown unit are mostly empty.

        Raises:
            SlidepackError: DAEMON-NO-SYSTEMD or DAEMON-SERVICE-FAILED.
        """
        wanted = f"--property={','.join(names)}"
        lines = self.run("show", unit, "--timestamp=unix", wanted).splitlines()
        pairs = (line.partition("=") for line in lines)
        return {name: value for name, found, value in pairs if found}

    def enable_linger(self, user: str) -> None:
        """Let a user's services run without a login.

        Raises:
            SlidepackError: DAEMON-NO-SYSTEMD or DAEMON-SERVICE-FAILED.
        """
        self._run(["loginctl", "enable-linger", user], _ASK_SECONDS)

    def lingers(self, user: str) -> bool | None:
        """Return whether a user's services run without a login; None where nobody says."""
        try:
            shown = self._run(["loginctl", "show-user", user, "--property=Linger"], _ASK_SECONDS)
        except SlidepackError:
            # logind knows no user who is neither logged in nor lingers.
            return None
        return shown.strip() == "Linger=yes"

    def add_user(self, name: str, home: str) -> None:
        """Make a user of the system, with a group of the same name and no shell.

        Raises:
            SlidepackError: DAEMON-SERVICE-FAILED.
        """
        options = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin"]
        self._run(["useradd", *options, "--home-dir", home, name], _ASK_SECONDS)

    def exposure(self, unit_path: str) -> str | None:
        """Return the verdict of `systemd-analyze security`, as `2.6 OK`; None without one."""
        command = ["systemd-analyze", *self._scope, "security", "--no-pager", "--offline=true"]
        try:
            shown = self._run([*command, unit_path], _ASK_SECONDS)
        except SlidepackError:
            # Not installed, or before systemd 250, which knows no --offline.
            return None
        words = shown.strip().rpartition(":")[2].split()
        return " ".join(words[:2]) or None

    def _run(self, command: list[str], seconds: float) -> str:
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except FileNotFoundError as error:
            if command[0] == "useradd":
                raise self._failed(command, "there is no useradd") from error
            raise _no_systemd(f"there is no {command[0]}") from error
        except OSError as error:
            raise self._failed(command, f"{command[0]}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise self._failed(command, f"no answer within {seconds:g} s") from error
        if done.returncode == 0:
            return done.stdout
        why = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        if any(sign in why for sign in _NO_MANAGER):
            raise _no_systemd(why)
        raise self._failed(command, why)

    def _failed(self, command: list[str], why: str) -> SlidepackError:
        scope = "" if self.system else "--user "
        return SlidepackError(
            "DAEMON-SERVICE-FAILED",
            f"`{' '.join(command)}` failed.",
            why=why,
            fix=f"`journalctl {scope}-u slidepack -n 30` shows what the daemon said.",
        )


def _no_systemd(why: str) -> SlidepackError:
    return SlidepackError(
        "DAEMON-NO-SYSTEMD",
        "No systemd answers here, so there can be no service.",
        why=why,
        fix="Under WSL, put `systemd=true` under `[boot]` in /etc/wsl.conf and run "
        "`wsl --shutdown` in Windows. After `su` or `sudo`, log in as the user instead. In a "
        "container, run `slidepack serve` as its command.",
    )
