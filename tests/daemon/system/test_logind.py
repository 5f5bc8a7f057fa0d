"""Calls of a login manager on a real bus, and of one that is not there."""

import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.private_bus import FakeLogind, PrivateBus
from support.waiting import wait_until

from slidepack.daemon.system.logind import Logind
from slidepack.engine.contract.errors import SlidepackError


@pytest.fixture
def logind(bus: PrivateBus) -> Logind:
    return Logind(bus.address, seconds=30)


def _code(error: pytest.ExceptionInfo[SlidepackError]) -> str:
    report = error.value.report
    assert report.why
    assert report.fix
    return report.code


def test_a_lock_is_held_until_it_is_released(fake_logind: FakeLogind, logind: Logind) -> None:
    lock = logind.inhibit("idle", "Job 3 trains", "block")
    assert lock.held
    assert fake_logind.held() == [("idle", "block")]
    assert fake_logind.calls == [("Inhibit", ("idle", "Slidepack", "Job 3 trains", "block"))]
    lock.release()
    fake_logind.wait_held()
    lock.release()
    with logind.inhibit("sleep", "saves", "delay"):
        assert fake_logind.held() == [("sleep", "delay")]
    fake_logind.wait_held()


def test_a_lock_of_a_login_manager_that_died_is_not_held(bus: PrivateBus, logind: Logind) -> None:
    fake = FakeLogind(bus.address)
    lock = logind.inhibit("idle", "Job 3 trains", "block")
    fake.close()
    assert not lock.held


def test_a_suspend_and_a_power_off_ask_nobody_for_a_password(
    fake_logind: FakeLogind, logind: Logind
) -> None:
    logind.check("suspend")
    logind.perform("suspend")
    logind.check("poweroff")
    logind.perform("poweroff")
    assert [call for call in fake_logind.calls if not call[0].startswith("Can")] == [
        ("Suspend", (False,)),
        ("PowerOff", (False,)),
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [("challenge", "password"), ("no", "not allow"), ("na", "hardware"), ("later", "later")],
)
def test_what_would_not_work_is_told_beforehand(
    fake_logind: FakeLogind, logind: Logind, answer: str, said: str
) -> None:
    fake_logind.can["CanPowerOff"] = answer
    with pytest.raises(SlidepackError) as error:
        logind.check("poweroff")
    assert _code(error) == "DAEMON-POWER-REFUSED"
    assert said in str(error.value)
    logind.check("suspend")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", "polkit"),
        ("org.freedesktop.DBus.Error.AccessDenied", "polkit"),
        ("org.freedesktop.login1.OperationInProgress", "systemd-inhibit --list"),
        ("org.freedesktop.login1.BlockedByInhibitorLock", "systemd-inhibit --list"),
    ],
)
def test_a_refusal_says_who_could_allow_it(
    fake_logind: FakeLogind, logind: Logind, name: str, said: str
) -> None:
    fake_logind.refusals["PowerOff"] = name
    with pytest.raises(SlidepackError) as error:
        logind.perform("poweroff")
    assert _code(error) == "DAEMON-POWER-REFUSED"
    assert said in error.value.report.fix
    assert name in error.value.report.why


def test_how_long_a_suspend_waits(bus: PrivateBus, logind: Logind) -> None:
    fake = FakeLogind(bus.address, delay_seconds=30)
    assert logind.delay_seconds() == 30
    fake.close()


def test_no_bus_no_login_manager_and_no_answer_are_told(
    tmp_path: Path, bus: PrivateBus, logind: Logind
) -> None:
    for absent in (Logind(f"unix:path={tmp_path}/nothing"), Logind("tcp:host=x"), logind):
        with pytest.raises(SlidepackError) as error:
            absent.inhibit("idle", "Job 3 trains", "block")
        assert _code(error) == "DAEMON-NO-LOGIND"
        assert "WSL" in error.value.report.fix
    fake = FakeLogind(bus.address)
    fake.silent.add("Inhibit")
    started = time.monotonic()
    with pytest.raises(SlidepackError) as error:
        Logind(bus.address, seconds=0.2).inhibit("idle", "Job 3 trains", "block")
    assert _code(error) == "DAEMON-NO-LOGIND"
    assert "0.2 s" in error.value.report.why
    assert time.monotonic() - started < 20, "not as long as the others may take"
    fake.close()


@pytest.mark.parametrize(
    "greeting", [[], [b"OK 0123456789abcdef0123456789abcdef\r\n", b"AGREE_UNIX_FD\r\n"]]
)
def test_a_bus_that_falls_silent_does_not_hold_the_daemon(
    tmp_path: Path, greeting: list[bytes]
) -> None:
    # One says nothing at all; the other lets one in and never answers again.
    codes: list[str] = []

    def call() -> None:
        with pytest.raises(SlidepackError) as error:
            Logind(f"unix:path={tmp_path / 'mute'}", seconds=0.3).delay_seconds()
        codes.append(error.value.report.code)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "mute"))
        listener.listen(1)
        listener.settimeout(60)
        caller = threading.Thread(target=call, daemon=True)
        caller.start()
        connected, _ = listener.accept()
        with connected:
            connected.settimeout(60)
            # On a machine that is stalled for so long it has given up before it is let in.
            with suppress(BrokenPipeError, ConnectionResetError):
                for line in greeting:
                    connected.recv(1024).strip(b"\0") or connected.recv(1024)
                    connected.send(line)
            wait_until(lambda: not caller.is_alive())
    assert codes == ["DAEMON-NO-LOGIND"]


def test_locks_outlive_the_bus(bus: PrivateBus, fake_logind: FakeLogind, logind: Logind) -> None:
    lock = logind.inhibit("idle", "Job 3 trains", "block")
    bus.stop()
    assert lock.held
    with pytest.raises(SlidepackError) as error:
        logind.perform("suspend")
    assert _code(error) == "DAEMON-NO-LOGIND"
    bus.start()
    again = FakeLogind(bus.address)
    logind.perform("suspend")
    assert again.count("Suspend") == 1
    again.close()
    lock.release()


def test_a_lock_is_not_inherited_by_a_worker(fake_logind: FakeLogind, logind: Logind) -> None:
    with logind.inhibit("idle", "Job 3 trains", "block"):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        fake_logind.wait_held()
    finally:
        child.kill()
        child.wait()
