"""The desktop's own lock, on a real bus."""

from pathlib import Path

import pytest
from support.private_bus import FakeService, PrivateBus
from support.waiting import wait_until

from slidepack.daemon.system.desktop import DesktopInhibitor, session_bus

GNOME, KDE = "org.gnome.SessionManager", "org.freedesktop.PowerManagement"


@pytest.mark.parametrize("name", [GNOME, KDE])
def test_a_desktop_is_asked_too(bus: PrivateBus, name: str) -> None:
    desktop = FakeService(bus.address, name, {"Inhibit": lambda *_: ("u", (7,))})
    lock = DesktopInhibitor(bus.address)
    assert lock.take("Job 3 trains")
    assert lock.take("Job 4 trains")
    expected = {GNOME: ("slidepack", 0, "Job 3 trains", 4), KDE: ("slidepack", "Job 3 trains")}
    assert desktop.calls == [("Inhibit", expected[name])]
    assert lock.held
    bus.stop()
    wait_until(lambda: not lock.held, what="a desktop that is gone holds nothing")
    assert not lock.take("Job 3 trains")
    desktop.close()


def test_no_desktop_is_no_problem(bus: PrivateBus, tmp_path: Path) -> None:
    assert not DesktopInhibitor(f"unix:path={tmp_path}/nothing").take("Job 3 trains")
    assert not DesktopInhibitor(bus.address).take("Job 3 trains")


def test_where_the_users_bus_is() -> None:
    assert session_bus({"DBUS_SESSION_BUS_ADDRESS": "unix:path=/x"}) == "SESSION"
    assert session_bus({"XDG_RUNTIME_DIR": "/run/user/7"}) == "unix:path=/run/user/7/bus"
    assert session_bus({}) == "SESSION"
