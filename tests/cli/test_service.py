"""`slidepack service`, with a systemctl that writes down what it is asked for."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from support.fake_systemd import FakeSystemd
from typer.testing import CliRunner

from slidepack.cli.service import app
from slidepack.daemon.system.service_unit import ServiceUnit
from slidepack.daemon.system.systemctl import Manager
from slidepack.daemon.system.unit_file import MARKER, this_command
from slidepack.engine.contract.errors import SlidepackError

ENABLE = "systemctl --user --no-pager enable --now slidepack.service"
RELOAD = "systemctl --user --no-pager daemon-reload"
DISABLE = "systemctl --user --no-pager disable --now slidepack.service"
RESTART = "systemctl --user --no-pager restart slidepack.service"


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSystemd:
    fake = FakeSystemd(tmp_path / "fake")
    monkeypatch.setenv("PATH", fake.path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("SLIDEPACK_HOME", raising=False)
    return fake


@pytest.fixture
def unit(systemd: FakeSystemd, tmp_path: Path) -> Path:
    """The unit's file, which is not there yet."""
    return tmp_path / "config" / "systemd" / "user" / "slidepack.service"


def _say(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def _json(*arguments: str) -> Any:
    text = _say(*arguments, "--json")
    assert text.count("\n") == 1, "exactly one JSON value on one line"
    return json.loads(text)


def _refusal(*arguments: str) -> SlidepackError:
    with pytest.raises(SlidepackError) as error:
        _say(*arguments)
    assert error.value.report.why
    assert error.value.report.fix
    return error.value


def test_install_writes_starts_and_tells(systemd: FakeSystemd, unit: Path) -> None:
    told = _say("install")
    text = unit.read_text()
    assert text.startswith(MARKER)
    assert f"\nExecStart=:{' '.join(this_command())}\n" in text
    assert unit.stat().st_mode & 0o777 == 0o644
    assert systemd.calls == [RELOAD, ENABLE]
    assert "slidepack open" in told
    assert "journalctl --user -u slidepack" in told
    assert "--linger" in told, "it would end with the login"


def test_linger_is_asked_of_logind(systemd: FakeSystemd, unit: Path) -> None:
    systemd.answer("show-user", Linger="yes")
    done = _json("install", "--linger")
    assert done["linger"] is True
    assert not [hint for hint in done["hints"] if "--linger" in hint]
    (asked,) = [call for call in systemd.calls if call.startswith("loginctl")]
    assert asked.startswith("loginctl enable-linger ")
    assert done["unit"] == str(unit)


def test_print_changes_nothing(systemd: FakeSystemd, unit: Path) -> None:
    text = _json("install", "--print")["text"]
    assert "KillMode=process\n" in text
    assert _say("install", "--print").strip() == text.strip()
    assert "User=slidepack\n" in _say("install", "--print", "--system")
    assert not unit.exists()
    assert systemd.calls == []


def test_the_service_finds_the_files_that_the_shell_finds(
    unit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data/sh are")
    monkeypatch.setenv("SLIDEPACK_HOME", "/data/50%")
    _say("install")
    text = unit.read_text()
    assert '\nEnvironment="XDG_DATA_HOME=/data/sh are"\n' in text
    assert '\nEnvironment="SLIDEPACK_HOME=/data/50%%"\n' in text
    home = tmp_path / "new" / "home"
    _say("install", "--data-dir", str(home))
    assert f"\nEnvironment=SLIDEPACK_HOME={home}\n" in unit.read_text()
    assert home.stat().st_mode & 0o777 == 0o700


def test_installing_again_restarts_only_for_another_unit(
    systemd: FakeSystemd, unit: Path, tmp_path: Path
) -> None:
    _say("install")
    systemd.answer("show", ActiveState="active")
    _say("install")
    assert RESTART not in systemd.calls
    _say("install", "--data-dir", str(tmp_path / "home"))
    assert systemd.calls[-1] == RESTART


def test_uninstall_removes_what_install_wrote(systemd: FakeSystemd, unit: Path) -> None:
    _say("install")
    dropin = unit.with_name("slidepack.service.d")
    dropin.mkdir()
    told = _say("uninstall")
    assert not unit.exists()
    assert dropin.exists(), "the user's own"
    assert systemd.calls[-2:] == [DISABLE, RELOAD]
    assert str(unit) in told
    assert _json("uninstall") == {"unit": str(unit), "removed": False}


def test_a_unit_of_somebody_else_is_left_alone(systemd: FakeSystemd, unit: Path) -> None:
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/my/own serve\n")
    for command in ("install", "uninstall"):
        error = _refusal(command)
        assert error.report.code == "DAEMON-SERVICE-FAILED"
        assert str(unit) in error.report.what
    assert "/my/own" in unit.read_text()
    assert systemd.calls == []


def test_a_stop_that_fails_leaves_the_unit(systemd: FakeSystemd, unit: Path) -> None:
    _say("install")
    systemd.fail("disable", "Failed to disable unit: Access denied\n")
    assert _refusal("uninstall").report.why == "Failed to disable unit: Access denied"
    assert unit.exists()


def test_what_systemctl_complains_of_is_the_evidence(systemd: FakeSystemd, unit: Path) -> None:
    systemd.fail("enable", "Job for slidepack.service failed.\nSee the journal.\n")
    error = _refusal("install")
    assert error.report.code == "DAEMON-SERVICE-FAILED"
    assert error.report.why == "Job for slidepack.service failed. See the journal."
    assert "journalctl --user -u slidepack" in error.report.fix


@pytest.mark.parametrize("command", ["install", "uninstall", "status"])
@pytest.mark.parametrize(
    "said",
    [
        "System has not been booted with systemd as init system (PID 1). Can't operate.",
        "Failed to connect to bus: No medium found",
    ],
)
def test_without_systemd_it_says_what_to_do(
    systemd: FakeSystemd, unit: Path, command: str, said: str
) -> None:
    systemd.fail("show", said)
    error = _refusal(command)
    assert error.report.code == "DAEMON-NO-SYSTEMD"
    assert said in error.report.why
    assert "WSL" in error.report.fix
    assert not unit.exists()


def test_without_systemctl_it_says_what_to_do(
    tmp_path: Path, unit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    error = _refusal("install")
    assert error.report.code == "DAEMON-NO-SYSTEMD"
    assert "systemctl" in error.report.why
    assert not unit.exists()


def test_a_systemctl_that_hangs_is_not_waited_for(systemd: FakeSystemd) -> None:
    systemd.hang("daemon-reload")
    started = time.monotonic()
    with pytest.raises(SlidepackError) as error:
        Manager(system=False).run("daemon-reload", seconds=0.3)
    assert error.value.report.code == "DAEMON-SERVICE-FAILED"
    assert "0.3 s" in error.value.report.why
    assert time.monotonic() - started < 30


def test_a_folder_that_cannot_be_written_is_told(
    systemd: FakeSystemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert _refusal("install").report.code == "DISK-UNWRITABLE"
    assert systemd.calls == []


def test_status_of_a_running_service(systemd: FakeSystemd, unit: Path) -> None:
    _say("install")
    systemd.answer(
        "show",
        LoadState="loaded",
        ActiveState="active",
        SubState="running",
        UnitFileState="enabled",
        FragmentPath=str(unit),
        MainPID="4711",
        ActiveEnterTimestamp="@1764503220",
        WatchdogUSec="5min",
        NRestarts="2",
        Result="success",
        StatusText="Job 3 trains.",
    )
    found = _json("status")
    has_analyze = shutil.which("systemd-analyze") is not None
    assert (found.pop("exposure") is not None) == has_analyze
    assert found == {
        "installed": True,
        "unit": str(unit),
        "ours": True,
        "enabled": "enabled",
        "active": "active (running)",
        "status": "Job 3 trains.",
        "result": "success",
        "main_pid": 4711,
        "since": 1764503220.0,
        "restarts": 2,
        "watchdog": "5min",
        "linger": False,
        "log": "journalctl --user -u slidepack",
    }
    told = _say("status")
    for word in ("active (running)", "4711", "Job 3 trains.", "5min", "journalctl"):
        assert word in told


def test_status_of_nothing_and_of_a_service_that_was_killed(
    systemd: FakeSystemd, unit: Path
) -> None:
    assert "service install" in _say("status")
    assert _json("status")["installed"] is False
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n")
    systemd.answer(
        "show",
        LoadState="loaded",
        ActiveState="failed",
        SubState="failed",
        FragmentPath=str(unit),
        MainPID="0",
        ActiveEnterTimestamp="@0",
        WatchdogUSec="infinity",
        Result="watchdog",
    )
    systemd.fail("show-user", "User ID 0 is not logged in or lingering")
    found = _json("status")
    assert (found["main_pid"], found["since"], found["watchdog"]) == (None, None, "")
    assert (found["ours"], found["linger"], found["result"]) == (False, None, "watchdog")
    # A long path may break the line anywhere.
    assert "notwrittenbySlidepack" in "".join(_say("status").split())


def test_the_machines_service(systemd: FakeSystemd, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may install it")
    unit = ServiceUnit(Manager(system=True), folder=tmp_path / "etc", installation=[])
    done = unit.install(None, linger=True)
    assert done.linger is None
    text = (tmp_path / "etc" / "slidepack.service").read_text()
    assert "\nUser=slidepack\n" in text
    assert "\nStateDirectory=slidepack\n" in text
    calls = systemd.calls
    assert calls[-2:] == [
        "systemctl --no-pager daemon-reload",
        "systemctl --no-pager enable --now slidepack.service",
    ]
    assert calls[:-2] in ([], [calls[0]])
    assert all(call.startswith("useradd --system ") for call in calls[:-2])
    assert unit.uninstall()
    assert unit.log_command == "journalctl -u slidepack"


def test_the_machines_service_could_not_run_a_private_installation(
    systemd: FakeSystemd, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may install it")
    private = tmp_path / "home" / "venv" / "bin" / "slidepack"
    private.parent.mkdir(parents=True)
    (tmp_path / "home").chmod(0o750)
    link = tmp_path / "slidepack"
    link.symlink_to(private)
    unit = ServiceUnit(Manager(system=True), folder=tmp_path / "etc", installation=[link])
    tmp_path.chmod(0o755)
    with pytest.raises(SlidepackError) as error:
        unit.install(None, linger=False)
    assert error.value.report.code == "DAEMON-SERVICE-FAILED"
    assert "others may not enter" in error.value.report.why
    assert "/opt/slidepack" in error.value.report.fix
    assert systemd.calls == []


def test_the_machines_service_is_roots_to_change(
    systemd: FakeSystemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    unit = ServiceUnit(Manager(system=True), folder=tmp_path / "etc")
    with pytest.raises(SlidepackError) as error:
        unit.install(None, linger=False)
    assert "root" in error.value.report.what
    assert systemd.calls == []


@pytest.mark.parametrize(("present", "hinted"), [(False, True), (True, False)])
def test_a_missing_nvidia_device_is_told(
    systemd: FakeSystemd, tmp_path: Path, present: bool, hinted: bool
) -> None:
    (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    if present:
        (tmp_path / "dev" / "nvidia-uvm").touch()
    unit = ServiceUnit(Manager(system=False), root=tmp_path, folder=tmp_path / "units")
    hints = unit.install(None, linger=False).hints
    assert any("nvidia_uvm" in hint for hint in hints) == hinted
