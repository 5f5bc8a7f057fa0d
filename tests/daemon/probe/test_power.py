"""Power, and the clock, of a machine that may fall asleep."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.private_bus import FakeLogind, PrivateBus

from slidepack.daemon.probe.clock import clock_state, clock_synchronised
from slidepack.daemon.probe.power import read_power
from slidepack.daemon.system.logind import Logind


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    private = PrivateBus(tmp_path)
    private.start()
    yield private
    private.stop()


@pytest.fixture
def login_manager(bus: PrivateBus) -> Iterator[FakeLogind]:
    fake = FakeLogind(bus.address)
    yield fake
    fake.close()


def no_battery() -> None:
    return None


def test_the_lock_is_tried_and_given_back(
    bus: PrivateBus, login_manager: FakeLogind, tree: Any
) -> None:
    (tree.root / "run" / "systemd" / "system").mkdir(parents=True)
    power = read_power(tree.root, Logind(bus.address, seconds=30), battery=no_battery)
    assert power.awake_code == ""
    assert power.systemd
    assert power.battery_percent is None
    assert login_manager.count("Inhibit") == 1
    login_manager.wait_held()


def test_a_refusal_is_told_with_its_code(
    bus: PrivateBus, login_manager: FakeLogind, tree: Any
) -> None:
    login_manager.refusals["Inhibit"] = "org.freedesktop.DBus.Error.AccessDenied"
    power = read_power(tree.root, Logind(bus.address, seconds=30), battery=no_battery)
    assert power.awake_code == "DAEMON-POWER-REFUSED"
    assert "AccessDenied" in power.awake_why
    assert power.awake_fix


def test_nobody_on_the_bus_is_told_and_does_not_hang(tmp_path: Path, tree: Any) -> None:
    nobody = Logind(f"unix:path={tmp_path / 'no-bus'}", seconds=0.2)
    power = read_power(tree.root, nobody, battery=no_battery)
    assert power.awake_code == "DAEMON-NO-LOGIND"
    assert not power.systemd


def test_the_battery(tmp_path: Path, tree: Any) -> None:
    nobody = Logind(f"unix:path={tmp_path / 'no-bus'}", seconds=0.2)
    state = SimpleNamespace(percent=41, secsleft=100, power_plugged=False)
    power = read_power(tree.root, nobody, battery=lambda: state)
    assert (power.battery_percent, power.plugged_in) == (41.0, False)


@pytest.mark.parametrize(("state", "answer"), [(0, True), (1, True), (5, False), (-1, None)])
def test_the_clock(state: int, answer: bool | None) -> None:
    assert clock_synchronised(lambda: state) is answer


def test_this_kernel_answers() -> None:
    assert clock_state() in range(-1, 6)
