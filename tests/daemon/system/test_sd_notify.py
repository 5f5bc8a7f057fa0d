"""What systemd hears, through real sockets of both kinds."""

import os
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slidepack.daemon.system.sd_notify import (
    SERVICE_VARIABLES,
    Notifier,
    Watchdog,
    without_service_variables,
)

PID = 4711
Heard = Callable[[], str]


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Heard]]:
    """A service manager's socket: its address, and what it hears next ("" for nothing)."""
    name = f"slidepack-test-{secrets.token_hex(8)}"
    address = str(tmp_path / "notify") if request.param == "path" else f"@{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address if request.param == "path" else f"\0{name}")
        receiver.setblocking(False)

        def heard() -> str:
            try:
                return receiver.recv(4096).decode()
            except BlockingIOError:
                return ""

        yield address, heard


def _notifier(address: str, **watchdog: str) -> Notifier:
    return Notifier.from_environment({"NOTIFY_SOCKET": address, **watchdog}, PID)


def test_the_life_of_a_service(manager: tuple[str, Heard]) -> None:
    address, heard = manager
    notifier = _notifier(address)
    assert notifier.active
    notifier.ready("Ready on port 7333.")
    assert heard() == "READY=1\nSTATUS=Ready on port 7333."
    notifier.status("Job 3 runs.\nREADY=0")
    assert heard() == "STATUS=Job 3 runs. READY=0", "a line break must not begin an assignment"
    notifier.stopping()
    assert heard() == "STOPPING=1"
    notifier.extend_timeout(12.5)
    assert heard() == "EXTEND_TIMEOUT_USEC=12500000"
    notifier.status("")
    notifier.alive()
    assert heard() == "", "no watchdog was asked for"


@pytest.mark.parametrize(
    ("variables", "seconds"),
    [
        ({"WATCHDOG_USEC": "300000000", "WATCHDOG_PID": str(PID)}, 300.0),
        ({"WATCHDOG_USEC": "300000000"}, 300.0),
        ({"WATCHDOG_USEC": "300000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_whose_watchdog_it_is(
    manager: tuple[str, Heard], variables: dict[str, str], seconds: float | None
) -> None:
    address, heard = manager
    notifier = _notifier(address, **variables)
    assert notifier.watchdog_seconds == seconds
    notifier.alive()
    assert heard() == ("WATCHDOG=1" if seconds else "")


def test_the_watchdog_hears_of_every_part_or_of_none(manager: tuple[str, Heard]) -> None:
    address, heard = manager
    watchdog = Watchdog(_notifier(address, WATCHDOG_USEC="40000000"), ["clock", "page"])
    assert watchdog.interval_seconds == 10
    watchdog.alive("clock", 0.0)
    assert heard() == "", "the page has not been heard of"
    watchdog.alive("page", 1.0)
    assert heard() == "WATCHDOG=1"
    watchdog.alive("clock", 2.0)
    watchdog.alive("page", 3.0)
    assert heard() == "", "not more often than it is needed"
    watchdog.alive("clock", 12.0)
    assert heard() == "WATCHDOG=1"
    for second in range(13, 60):
        watchdog.alive("clock", float(second))
    assert heard() == "", "a page that hangs must not be covered for"
    with pytest.raises(KeyError):
        watchdog.alive("clokc", 60.0)


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative/path"])
def test_without_a_socket_nothing_happens(address: str) -> None:
    notifier = _notifier(address, WATCHDOG_USEC="1000000")
    assert not notifier.active
    notifier.ready()
    notifier.alive()
    assert notifier.watchdog_seconds is None
    assert Notifier.from_environment({}, PID).active is False


def test_a_manager_that_is_gone_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = _notifier(str(tmp_path / "nobody"))
    notifier.ready()
    notifier.status("still here")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "READY=1" in caplog.text


def test_a_manager_that_is_stuck_does_not_hold_the_daemon(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        full = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with full:
            full.setblocking(False)
            full.connect(str(tmp_path / "notify"))
            with pytest.raises(BlockingIOError):
                for _ in range(100_000):
                    full.send(b"x")
        _notifier(str(tmp_path / "notify")).ready()


def test_children_do_not_inherit_what_systemd_said() -> None:
    environment = dict.fromkeys(SERVICE_VARIABLES, "x") | {"PATH": os.defpath}
    assert without_service_variables(environment) == {"PATH": os.defpath}
    assert {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} <= SERVICE_VARIABLES
