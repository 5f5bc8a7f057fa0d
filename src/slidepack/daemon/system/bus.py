"""D-Bus, as little of it as is needed: one call, or a stream of one signal; all of it in time.

Each call has a connection of its own. Calls are rare, what logind gives out does not hang on the
connection, and so there is nothing to share, to lock or to connect again.
"""

import contextlib
import select
import socket
from dataclasses import dataclass
from typing import Any, Final

from jeepney import DBusAddress, MatchRule, message_bus, new_method_call
from jeepney.bus import get_bus
from jeepney.io.blocking import DBusConnection, prep_socket
from jeepney.wrappers import DBusErrorResponse, unwrap_msg

SYSTEM_BUS: Final = "SYSTEM"
SESSION_BUS: Final = "SESSION"
CALL_SECONDS: Final = 5.0
"""For one answer; a service that D-Bus has to start first takes a second or two."""

NOT_THERE: Final = frozenset(
    {
        "org.freedesktop.DBus.Error.ServiceUnknown",
        "org.freedesktop.DBus.Error.NameHasNoOwner",
        "org.freedesktop.DBus.Error.UnknownObject",
        "org.freedesktop.DBus.Error.UnknownMethod",
        "org.freedesktop.DBus.Error.UnknownInterface",
        "org.freedesktop.DBus.Error.UnknownProperty",
        "org.freedesktop.DBus.Error.Disconnected",
        "org.freedesktop.DBus.Error.NoReply",
        "org.freedesktop.DBus.Error.TimedOut",
    }
)
"""Errors that say that nobody answers, or nobody who knows the method."""


class BusError(Exception):
    """A call that failed; `name` is the D-Bus error, empty where no answer came at all."""

    def __init__(self, why: str, name: str = "") -> None:
        """Keep what is known."""
        super().__init__(why)
        self.why = why
        self.name = name

    @property
    def nobody_there(self) -> bool:
        """Whether nobody answered, as opposed to somebody who refused."""
        return not self.name or self.name in NOT_THERE


@dataclass(frozen=True, slots=True)
class Target:
    """An interface of an object of a service on a bus."""

    service: str
    path: str
    interface: str


class Connection:
    """One connection; not for several threads, but for `interrupt`."""

    def __init__(self, address: str, seconds: float = CALL_SECONDS) -> None:
        """Connect.

        Args:
            address: `SYSTEM`, `SESSION` or a D-Bus address (`unix:path=…`).
            seconds: limit of connecting, and of each answer.

        Raises:
            BusError: nothing answers there.
        """
        self._seconds = seconds
        try:
            self._socket: socket.socket = prep_socket(
                get_bus(address), enable_fds=True, timeout=seconds
            )
        # jeepney's refusals of an address or of a login are KeyError, RuntimeError and ValueError.
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            raise BusError(f"no D-Bus at {_named(address)}: {_text(error)}") from error
        try:
            self._bus = _PatientConnection(self._socket, seconds)
        except (OSError, RuntimeError, ValueError, DBusErrorResponse) as error:
            self._socket.close()
            raise BusError(f"the D-Bus at {_named(address)} broke off: {_text(error)}") from error

    def call(
        self, target: Target, member: str, signature: str = "", body: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        """Call a method and return the values of its answer.

        Raises:
            BusError: no answer in time, or an error for an answer.
        """
        address = DBusAddress(target.path, bus_name=target.service, interface=target.interface)
        return self._answer(new_method_call(address, member, signature or None, body), member)

    def subscribe(self, target: Target, member: str) -> None:
        """Ask for a signal; only one is asked for on a connection.

        Raises:
            BusError: no answer in time, or an error for an answer.
        """
        signal = {"interface": target.interface, "member": member, "path": target.path}
        # The bus checks the sender: anybody may send a signal of this name. Messages carry the
        # sender's number instead of its name, so what arrives is told by the rest.
        self._rule = MatchRule(type="signal", **signal)
        asked = MatchRule(type="signal", sender=target.service, **signal)
        self._answer(message_bus.AddMatch(asked), "AddMatch")

    def next_signal(self, seconds: float) -> tuple[Any, ...] | None:
        """Return the values of the next signal, or None where none came in time.

        Raises:
            BusError: the bus is gone.
        """
        try:
            message = self._bus.receive(timeout=seconds)
        except TimeoutError:
            return None
        except (OSError, RuntimeError, ValueError) as error:
            raise BusError(f"the D-Bus is gone: {_text(error)}") from error
        return tuple(message.body) if self._rule.matches(message) else None

    def is_alive(self) -> bool:
        """Return whether the other side still holds the connection; waits for nothing."""
        try:
            while select.select([self._socket], [], [], 0)[0]:
                # Nothing here is waited for: names that the bus gives and takes.
                if not self._socket.recv(4096, socket.MSG_DONTWAIT):
                    return False
        except (OSError, ValueError):
            return False
        return True

    def interrupt(self) -> None:
        """End another thread's wait on this connection."""
        # Already gone is as good.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._bus.close()

    def _answer(self, message: Any, member: str) -> tuple[Any, ...]:
        try:
            return tuple(unwrap_msg(self._bus.send_and_get_reply(message, timeout=self._seconds)))
        except DBusErrorResponse as error:
            raise BusError(f"{member}: {_text(error)}", str(error.name)) from error
        except TimeoutError as error:
            raise BusError(f"{member}: no answer within {self._seconds:g} s") from error
        except (OSError, RuntimeError, ValueError) as error:
            raise BusError(f"{member}: {_text(error)}") from error


class _PatientConnection(DBusConnection):  # type: ignore[misc]  # jeepney ships no types
    """jeepney's connection, whose greeting to the bus has no limit of its own."""

    def __init__(self, connected: socket.socket, seconds: float) -> None:
        self._limit_seconds = seconds
        super().__init__(connected, enable_fds=True)

    def send_and_get_reply(self, message: Any, *, timeout: float | None = None) -> Any:
        limit = self._limit_seconds if timeout is None else timeout
        return super().send_and_get_reply(message, timeout=limit)


def call_once(
    address: str,
    target: Target,
    member: str,
    signature: str = "",
    body: tuple[Any, ...] = (),
    *,
    seconds: float = CALL_SECONDS,
) -> tuple[Any, ...]:
    """Connect, call a method, close, and return the values of the answer.

    Raises:
        BusError: nobody answers in time, or an error for an answer.
    """
    with contextlib.closing(Connection(address, seconds)) as connection:
        return connection.call(target, member, signature, body)


def _named(address: str) -> str:
    return {SYSTEM_BUS: "the system bus", SESSION_BUS: "the session bus"}.get(address, address)


def _text(error: Exception) -> str:
    if isinstance(error, DBusErrorResponse):
        return " ".join([str(error.name), *map(str, error.data)])
    if isinstance(error, KeyError):
        return f"{error.args[0]} is not set"
    return str(error) or type(error).__name__
