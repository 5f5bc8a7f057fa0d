"""Locks while a run is on, and what happens when the machine goes to sleep, on a real bus."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.private_bus import FakeLogind, FakeService, PrivateBus
from support.waiting import PATIENCE, wait_until

from slidepack.daemon.system.desktop import DesktopInhibitor
from slidepack.daemon.system.logind import Logind
from slidepack.daemon.system.sleep_guard import SleepGuard
from slidepack.engine.contract.errors import SlidepackError

RUNNING = (("idle", "block"), ("sleep", "delay"))


class Listener:
    """Writes down what it is told; `saving` holds up a sleep until it is set."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.saving = threading.Event()
        self.saving.set()
        self.failure: Exception | None = None

    def before_sleep(self, seconds: float) -> None:
        self.told.append(f"sleep {seconds:g}")
        assert self.saving.wait(PATIENCE)
        if self.failure is not None:
            raise self.failure

    def after_wake(self) -> None:
        self.told.append("wake")


class Nap:
    """How long the machine has slept, by its clocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def nap() -> Nap:
    return Nap()


@pytest.fixture
def guard(bus: PrivateBus, listener: Listener, nap: Nap) -> Iterator[SleepGuard]:
    made = SleepGuard(
        Logind(bus.address, seconds=30),
        listener,
        suspended=nap,
        retry_seconds=0.05,
        look_seconds=0.05,
    )
    made.start()
    yield made
    listener.saving.set()
    made.stop()


def _held(fake: FakeLogind, guard: SleepGuard) -> None:
    """Wait until both locks are held, and the guard knows it."""
    fake.wait_held(*RUNNING)
    wait_until(lambda: guard.state().delay_seconds, what="the guard has both")


def _announced(guard: SleepGuard) -> None:
    wait_until(lambda: guard.state().announced, what="the watch is connected")


def _told(listener: Listener, *expected: str) -> None:
    wait_until(lambda: listener.told == list(expected), what=f"{listener.told}")


def test_locks_are_held_while_a_run_is_on(fake_logind: FakeLogind, guard: SleepGuard) -> None:
    assert guard.state().state == "off"
    guard.keep_awake("Job 3 trains")
    _held(fake_logind, guard)
    assert (guard.state().by, guard.state().delay_seconds) == (("logind",), 5)
    assert {lock.why for lock in fake_logind.locks} == {"Job 3 trains", "Writes a checkpoint first"}
    guard.keep_awake("Job 4 trains")
    guard.keep_awake("")
    fake_logind.wait_held()
    wait_until(lambda: guard.state().state == "off")
    assert fake_logind.count("Inhibit") == 2, "another job needs no other lock"


def test_nothing_blocks_a_suspend_that_somebody_asks_for(
    fake_logind: FakeLogind, guard: SleepGuard
) -> None:
    guard.keep_awake("Job 3 trains")
    _held(fake_logind, guard)
    assert [lock.what for lock in fake_logind.locks if lock.mode == "block"] == ["idle"]


def test_a_sleep_waits_until_the_checkpoint_is_saved(
    fake_logind: FakeLogind, guard: SleepGuard, listener: Listener
) -> None:
    guard.keep_awake("Job 3 trains")
    _held(fake_logind, guard)
    _announced(guard)
    listener.saving.clear()
    fake_logind.prepare_for_sleep(True)
    _told(listener, "sleep 5")
    # Many turns of the guard's loop: it must not let go of the lock by itself.
    calls = fake_logind.count("Inhibit")
    guard.keep_awake("")
    guard.keep_awake("Job 3 trains")
    assert ("sleep", "delay") in fake_logind.held()
    listener.saving.set()
    fake_logind.wait_held(("idle", "block"))
    assert fake_logind.count("Inhibit") == calls
    fake_logind.prepare_for_sleep(False)
    _told(listener, "sleep 5", "wake")
    _held(fake_logind, guard)


def test_a_sleep_does_not_wait_for_a_lock_that_came_too_late(
    fake_logind: FakeLogind, guard: SleepGuard, listener: Listener
) -> None:
    _announced(guard)

    def announce(what: str, *_rest: str) -> None:
        if what == "sleep" and not listener.told:
            fake_logind.prepare_for_sleep(True)
            fake_logind.flush()
            _told(listener, "sleep 0")

    fake_logind.before["Inhibit"] = announce
    guard.keep_awake("Job 3 trains")
    wait_until(lambda: len(fake_logind.locks) == 2)
    fake_logind.wait_held(("idle", "block"))
    fake_logind.prepare_for_sleep(False)
    _held(fake_logind, guard)


def test_a_checkpoint_that_fails_does_not_hold_the_sleep(
    fake_logind: FakeLogind,
    guard: SleepGuard,
    listener: Listener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard.keep_awake("Job 3 trains")
    _held(fake_logind, guard)
    _announced(guard)
    listener.failure = SlidepackError("DISK-FULL", "The disk is full.", why="0 bytes free")
    fake_logind.prepare_for_sleep(True)
    fake_logind.wait_held(("idle", "block"))
    wait_until(lambda: "DISK-FULL" in caplog.text)
    fake_logind.prepare_for_sleep(False)
    _told(listener, "sleep 5", "wake")


def test_without_a_run_a_sleep_is_told_and_not_delayed(
    fake_logind: FakeLogind, guard: SleepGuard, listener: Listener
) -> None:
    _announced(guard)
    fake_logind.prepare_for_sleep(True)
    fake_logind.prepare_for_sleep(True)
    fake_logind.prepare_for_sleep(False)
    fake_logind.prepare_for_sleep(False)
    _told(listener, "sleep 0", "wake")
    assert fake_logind.count("Inhibit") == 0


def test_a_wake_up_that_nobody_announced_shows_in_the_clocks(
    bus: PrivateBus, fake_logind: FakeLogind, guard: SleepGuard, listener: Listener, nap: Nap
) -> None:
    _announced(guard)
    nap.seconds = 3600.0
    _told(listener, "wake")
    fake_logind.prepare_for_sleep(True)
    _told(listener, "wake", "sleep 0")
    bus.stop()
    nap.seconds = 7200.0
    _told(listener, "wake", "sleep 0", "wake")


def test_a_bus_that_goes_away_costs_no_lock_and_comes_back(
    bus: PrivateBus, fake_logind: FakeLogind, guard: SleepGuard, listener: Listener
) -> None:
    guard.keep_awake("Job 3 trains")
    _held(fake_logind, guard)
    _announced(guard)
    bus.stop()
    wait_until(lambda: not guard.state().announced)
    assert guard.state().state == "held"
    assert fake_logind.held() == sorted(RUNNING)
    bus.start()
    again = FakeLogind(bus.address)
    _announced(guard)
    again.prepare_for_sleep(True)
    _told(listener, "sleep 5")
    again.close()


def test_a_login_manager_that_comes_late_is_asked_again(
    bus: PrivateBus, guard: SleepGuard, caplog: pytest.LogCaptureFixture
) -> None:
    guard.keep_awake("Job 3 trains")
    wait_until(lambda: guard.state().problem)
    state = guard.state()
    assert state.state == "unprotected"
    assert state.problem is not None
    assert state.problem.code == "DAEMON-NO-LOGIND"
    late = FakeLogind(bus.address)
    _held(late, guard)
    wait_until(lambda: guard.state().state == "held")
    assert guard.state().problem is None
    assert [r.levelname for r in caplog.records].count("WARNING") == 1, "told once, not each try"
    late.close()


def test_a_login_manager_that_died_is_asked_again(bus: PrivateBus, guard: SleepGuard) -> None:
    first = FakeLogind(bus.address)
    guard.keep_awake("Job 3 trains")
    _held(first, guard)
    first.close()
    second = FakeLogind(bus.address)
    _held(second, guard)
    second.close()


def test_a_refused_delay_leaves_the_idle_lock(bus: PrivateBus, guard: SleepGuard) -> None:
    fake = FakeLogind(bus.address)
    fake.refusals["Get"] = "org.freedesktop.DBus.Error.AccessDenied"
    guard.keep_awake("Job 3 trains")
    fake.wait_held(("idle", "block"))
    wait_until(lambda: guard.state().problem)
    assert (guard.state().state, guard.state().delay_seconds) == ("held", None)
    fake.close()


def test_stopping_releases_everything(bus: PrivateBus, fake_logind: FakeLogind) -> None:
    guard = SleepGuard(Logind(bus.address), Listener(), retry_seconds=0.05)
    guard.start()
    guard.keep_awake("Job 3 trains")
    _held(fake_logind, guard)
    guard.stop()
    fake_logind.wait_held()
    assert not [t for t in threading.enumerate() if t.name.startswith("sleep-")]


def test_without_any_bus_it_says_so_and_stops_at_once(tmp_path: Path) -> None:
    guard = SleepGuard(Logind(f"unix:path={tmp_path}/nothing"), Listener())
    guard.start()
    guard.keep_awake("Job 3 trains")
    wait_until(lambda: guard.state().problem)
    assert guard.state().state == "unprotected"
    assert not guard.state().announced
    guard.stop()


def test_a_desktop_holds_it_where_logind_does_not(bus: PrivateBus, tmp_path: Path) -> None:
    name = "org.gnome.SessionManager"
    desktop = FakeService(bus.address, name, {"Inhibit": lambda *_: ("u", (7,))})
    guard = SleepGuard(
        Logind(f"unix:path={tmp_path}/nothing"),
        Listener(),
        desktop=DesktopInhibitor(bus.address),
        retry_seconds=0.05,
    )
    guard.start()
    guard.keep_awake("Job 3 trains")
    wait_until(lambda: guard.state().by == ("desktop",))
    assert guard.state().state == "held"
    guard.keep_awake("")
    wait_until(lambda: guard.state().state == "off")
    guard.stop()
    desktop.close()
