"""systemd-logind over D-Bus: keep the machine awake, put it to sleep, switch it off."""

import os
import select
from types import TracebackType
from typing import Any, Final, Literal, Self

from slidepack.daemon.system.bus import CALL_SECONDS, SYSTEM_BUS, BusError, Target, call_once
from slidepack.engine.contract.errors import SlidepackError

PowerAction = Literal["suspend", "poweroff"]

MANAGER: Final = Target(
    "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
)
_PROPERTIES: Final = Target(
    MANAGER.service, MANAGER.path, interface="org.freedesktop.DBus.Properties"
)
_WHO: Final = "Slidepack"
_METHODS: Final[dict[PowerAction, str]] = {"suspend": "Suspend", "poweroff": "PowerOff"}
_POLKIT_ACTIONS: Final[dict[PowerAction, str]] = {
    "suspend": "org.freedesktop.login1.suspend",
    "poweroff": "org.freedesktop.login1.power-off",
}
_WORDS: Final[dict[PowerAction, str]] = {
    "suspend": "put this machine to sleep",
    "poweroff": "switch this machine off",
}
_POWER_SECONDS: Final = 30.0
"""logind answers `Suspend` only when the inhibitors that delay it are gone."""


class Inhibitor:
    """A lock that logind gave; it lasts until `release`, or until this process ends."""

    def __init__(self, descriptor: int) -> None:
        """Take over the file descriptor, which no child process may inherit."""
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    @property
    def held(self) -> bool:
        """Whether logind still has its end; False after `release`, or where logind died."""
        if self._descriptor < 0:
            return False
        poll = select.poll()
        poll.register(self._descriptor, 0)
        if poll.poll(0):
            self.release()
        return self._descriptor >= 0

    def release(self) -> None:
        """Let go; a second time does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        """Return the lock."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Let go."""
        self.release()


class Logind:
    """Calls of the login manager. Each has a time limit; none keeps a connection."""

    def __init__(self, address: str = SYSTEM_BUS, seconds: float = CALL_SECONDS) -> None:
        """Bind the bus; nothing is connected yet.

        Args:
            address: `SYSTEM` or a D-Bus address.
            seconds: limit of one call.
        """
        self.address = address
        self._seconds = seconds

    def inhibit(self, what: str, why: str, mode: Literal["block", "delay"]) -> Inhibitor:
        """Take a lock.

        Args:
            what: `idle`, `sleep`, `shutdown`, several joined by colons.
            why: shown by `systemd-inhibit --list`.
            mode: `block` forbids, `delay` asks for a few seconds.

        Raises:
            SlidepackError: DAEMON-NO-LOGIND or DAEMON-POWER-REFUSED.
        """
        trying = f"keep this machine awake ({what}, {mode})"
        (handle,) = self._call(trying, "Inhibit", "ssss", (what, _WHO, why, mode))
        return Inhibitor(handle.to_raw_fd())

    def delay_seconds(self) -> float:
        """Return how long a delay lock can hold up a suspend (`InhibitDelayMaxSec=`).

        Raises:
            SlidepackError: DAEMON-NO-LOGIND or DAEMON-POWER-REFUSED.
        """
        body = (MANAGER.interface, "InhibitDelayMaxUSec")
        ((_signature, microseconds),) = self._call(
            "ask how long a suspend waits", "Get", "ss", body, target=_PROPERTIES
        )
        return float(microseconds) / 1e6

    def check(self, action: PowerAction) -> None:
        """Make sure that an action would work with nobody there to type a password.

        Raises:
            SlidepackError: DAEMON-NO-LOGIND or DAEMON-POWER-REFUSED.
        """
        (answer,) = self._call(_WORDS[action], f"Can{_METHODS[action]}")
        if answer == "yes":
            return
        if answer == "challenge":
            raise _refused(action, "logind would ask for a password", _polkit_fix(action))
        if answer == "no":
            raise _refused(action, "logind does not allow it to this user", _polkit_fix(action))
        raise _refused(
            action,
            f"logind answers {answer!r} to Can{_METHODS[action]}",
            "This hardware or kernel cannot do it; `cat /sys/power/state` lists what it can.",
        )

    def perform(self, action: PowerAction) -> None:
        """Suspend the machine or switch it off; a suspend may return after the wake-up.

        Raises:
            SlidepackError: DAEMON-NO-LOGIND or DAEMON-POWER-REFUSED.
        """
        # False: nobody is there whom polkit could ask for a password.
        self._call(_WORDS[action], _METHODS[action], "b", (False,), action=action)

    def _call(
        self,
        trying: str,
        member: str,
        signature: str = "",
        body: tuple[Any, ...] = (),
        *,
        target: Target = MANAGER,
        action: PowerAction | None = None,
    ) -> tuple[Any, ...]:
        seconds = self._seconds if action is None else max(self._seconds, _POWER_SECONDS)
        try:
            return call_once(self.address, target, member, signature, body, seconds=seconds)
        except BusError as error:
            raise _coded(error, trying, action) from error


def _coded(error: BusError, trying: str, action: PowerAction | None) -> SlidepackError:
    if error.nobody_there:
        return SlidepackError(
            "DAEMON-NO-LOGIND",
            f"Nobody can {trying}: systemd-logind does not answer.",
            why=error.why,
            fix="Under WSL, Windows decides about sleep (Settings, Power); in a container, the "
            "host does. Elsewhere: `systemctl status systemd-logind dbus`.",
        )
    if error.name.endswith(("OperationInProgress", "BlockedByInhibitorLock")):
        fix = "`systemd-inhibit --list` shows which program holds it up."
    else:
        fix = _polkit_fix(action) if action else "See `journalctl -u polkit -u systemd-logind`."
    return SlidepackError(
        "DAEMON-POWER-REFUSED", f"logind refuses to {trying}.", why=error.why, fix=fix
    )


def _refused(action: PowerAction, why: str, fix: str) -> SlidepackError:
    return SlidepackError(
        "DAEMON-POWER-REFUSED", f"Slidepack may not {_WORDS[action]}.", why=why, fix=fix
    )


def _polkit_fix(action: PowerAction) -> str:
    return (
        f"Stay logged in, or allow it with a polkit rule for the action {_POLKIT_ACTIONS[action]}."
    )
