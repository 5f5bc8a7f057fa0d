"""Asks the desktop to leave the machine awake.

GNOME and KDE suspend an idle machine by timers of their own; GNOME's never looks at logind's locks.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from slidepack.daemon.system.bus import SESSION_BUS, BusError, Connection, Target

logger = logging.getLogger(__name__)

_APPLICATION: Final = "slidepack"
_GNOME: Final = Target(
    "org.gnome.SessionManager", "/org/gnome/SessionManager", "org.gnome.SessionManager"
)
_FREEDESKTOP: Final = Target(
    "org.freedesktop.PowerManagement",
    "/org/freedesktop/PowerManagement/Inhibit",
    "org.freedesktop.PowerManagement.Inhibit",
)
_GNOME_SUSPEND: Final = 4
"""GNOME's flag for the automatic suspend; the screen may still go dark."""


def session_bus(environment: Mapping[str, str]) -> str:
    """Return the address of the user's bus, which a service without a login shell may not know."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    if environment.get("DBUS_SESSION_BUS_ADDRESS") or not runtime:
        return SESSION_BUS
    return f"unix:path={runtime}/bus"


class DesktopInhibitor:
    """Holds the desktop's own lock through one connection; one thread uses it."""

    def __init__(self, address: str = SESSION_BUS) -> None:
        """Bind the session bus; nothing is connected yet."""
        self._address = address
        self._connection: Connection | None = None

    @property
    def held(self) -> bool:
        """Whether a desktop holds the lock; False again after its user logged out."""
        if self._connection is not None and not self._connection.is_alive():
            self.release()
        return self._connection is not None

    def take(self, why: str) -> bool:
        """Ask the desktop, where one runs; return whether it holds the lock."""
        if self.held:
            return True
        try:
            connection = Connection(self._address)
        except BusError:
            # No session bus: nobody is logged in at a desktop.
            return False
        gnome: tuple[str, tuple[Any, ...]] = ("susu", (_APPLICATION, 0, why, _GNOME_SUSPEND))
        plain: tuple[str, tuple[Any, ...]] = ("ss", (_APPLICATION, why))
        for target, (signature, body) in ((_GNOME, gnome), (_FREEDESKTOP, plain)):
            try:
                connection.call(target, "Inhibit", signature, body)
            except BusError as error:
                if not error.nobody_there:
                    logger.info("The desktop refuses to stay awake: %s", error.why)
                continue
            # Both desktops drop the lock when the connection goes.
            self._connection = connection
            return True
        connection.close()
        return False

    def release(self) -> None:
        """Let go; a second time does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
