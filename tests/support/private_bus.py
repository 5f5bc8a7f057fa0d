"""A D-Bus of a test's own, and services on it that answer as the real ones do."""

import contextlib
import os
import queue
import select
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jeepney import (
    DBusAddress,
    HeaderFields,
    MessageType,
    message_bus,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.io.blocking import DBusConnection, open_dbus_connection
from jeepney.wrappers import unwrap_msg

from support.waiting import PATIENCE, wait_until


class PrivateBus:
    """A dbus-daemon at an address that stays the same when it is started again."""

    def __init__(self, folder: Path) -> None:
        """Name its socket; skip the test where there is no dbus-daemon."""
        if shutil.which("dbus-daemon") is None:
            pytest.skip("no dbus-daemon here (apt install dbus)")
        self._socket = folder / "bus"
        self.address = f"unix:path={self._socket}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        self._socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            ["dbus-daemon", "--session", "--nofork", "--print-address", "--address", self.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "dbus-daemon did not start"

    def stop(self) -> None:
        """End it, as a crash would: every connection breaks."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


Method = Callable[..., tuple[str, tuple[Any, ...]]]


class FakeService:
    """Owns a name on a bus and answers method calls, in a thread, until it is closed."""

    def __init__(self, address: str, name: str, methods: dict[str, Method]) -> None:
        """Take the name."""
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.refusals: dict[str, str] = {}
        """Member -> D-Bus error to answer with."""
        self.silent: set[str] = set()
        """Members that get no answer."""
        self.before: dict[str, Callable[..., None]] = {}
        """Member -> called with the arguments before they are answered."""
        self._methods = methods
        self._signals: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._connection: DBusConnection = open_dbus_connection(address, enable_fds=True)
        unwrap_msg(
            self._connection.send_and_get_reply(message_bus.RequestName(name), timeout=PATIENCE)
        )
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def emit(self, path: str, interface: str, member: str, signature: str, body: Any) -> None:
        """Broadcast a signal."""
        address = DBusAddress(path, interface=interface)
        self._signals.put(new_signal(address, member, signature, body))

    def flush(self) -> None:
        """Send the signals that wait; only for the thread that answers."""
        while not self._signals.empty():
            self._connection.send(self._signals.get())

    def count(self, member: str) -> int:
        """Return how often a method was called."""
        return sum(name == member for name, _ in self.calls)

    def close(self) -> None:
        """Give up the name."""
        self._closing.set()
        self._thread.join()
        self._connection.close()

    def _serve(self) -> None:
        # The bus may be taken away on purpose.
        with contextlib.suppress(ConnectionError):
            while not self._closing.is_set():
                self.flush()
                try:
                    message = self._connection.receive(timeout=0.01)
                except TimeoutError:
                    continue
                if message.header.message_type == MessageType.method_call:
                    self._answer(message)

    def _answer(self, message: Any) -> None:
        member = message.header.fields[HeaderFields.member]
        self.calls.append((member, tuple(message.body)))
        if member in self.silent:
            return
        if member in self.before:
            self.before[member](*message.body)
        if member in self.refusals:
            reply = new_error(message, self.refusals[member], "s", ("refused by the test",))
        elif member not in self._methods:
            unknown = "org.freedesktop.DBus.Error.UnknownMethod"
            reply = new_error(message, unknown, "s", (member,))
        else:
            reply = new_method_return(message, *self._methods[member](*message.body))
        self._connection.send(reply)


@dataclass
class Lock:
    """An inhibitor that the fake gave out."""

    what: str
    why: str
    mode: str
    ours: int
    """Our end of the pipe."""

    @property
    def held(self) -> bool:
        """Whether anybody still has the other end."""
        poll = select.poll()
        poll.register(self.ours, select.POLLHUP)
        return not poll.poll(0)


class FakeLogind(FakeService):
    """`org.freedesktop.login1`, with real pipes for inhibitors."""

    def __init__(self, address: str, *, delay_seconds: float = 5.0) -> None:
        """Take the name of logind."""
        self.locks: list[Lock] = []
        self.can = {"CanSuspend": "yes", "CanPowerOff": "yes"}
        self._given: list[int] = []
        delay = round(delay_seconds * 1e6)
        super().__init__(
            address,
            "org.freedesktop.login1",
            {
                "Inhibit": self._inhibit,
                "Get": lambda _interface, _name: ("v", (("t", delay),)),
                "CanSuspend": lambda: ("s", (self.can["CanSuspend"],)),
                "CanPowerOff": lambda: ("s", (self.can["CanPowerOff"],)),
                "Suspend": lambda _interactive: ("", ()),
                "PowerOff": lambda _interactive: ("", ()),
            },
        )

    def prepare_for_sleep(self, going: bool) -> None:
        """Announce a sleep, or that it is over."""
        self.emit(
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
            "PrepareForSleep",
            "b",
            (going,),
        )

    def held(self) -> list[tuple[str, str]]:
        """Return what is inhibited now, and in which mode."""
        return sorted((lock.what, lock.mode) for lock in self.locks if lock.held)

    def wait_held(self, *expected: tuple[str, str]) -> None:
        """Wait until exactly these locks are held."""
        wait_until(lambda: self.held() == sorted(expected), what=f"held: {expected}")

    def close(self) -> None:
        """Give up the name and every lock."""
        super().close()
        for lock in self.locks:
            os.close(lock.ours)
        self.locks.clear()

    def _inhibit(self, what: str, _who: str, why: str, mode: str) -> tuple[str, tuple[Any, ...]]:
        ours, theirs = os.pipe()
        self.locks.append(Lock(what, why, mode, ours))
        self._given.append(theirs)
        return "h", (theirs,)

    def _answer(self, message: Any) -> None:
        super()._answer(message)
        # The message carried a copy.
        while self._given:
            os.close(self._given.pop())
