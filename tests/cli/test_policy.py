"""`slidepack pause`, `resume`, `schedule` and `policy` against a real daemon."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.daemons import DaemonProcess

from slidepack.cli.main import run
from slidepack.cli.policy import parse_settings
from slidepack.engine.contract.errors import SlidepackError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def quiet_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon of this file's own: a pause would hold up the jobs of other tests."""
    with DaemonProcess(tmp_path_factory.mktemp("policy") / "home") as started:
        yield started


@pytest.fixture
def shell(
    quiet_daemon: DaemonProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run a command; return its exit status, what it printed, and what it complained of."""
    monkeypatch.setenv("SLIDEPACK_HOME", str(quiet_daemon.home))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = run(list(arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def _json(shell: Run, *arguments: str) -> Any:
    status, out, err = shell(*arguments, "--json")
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    return json.loads(out)


def test_pause_and_resume(shell: Run) -> None:
    state = _json(shell, "pause")
    assert (state["hold"]["code"], state["hold"]["until"]) == ("paused", None)
    assert shell("pause") == (0, "You paused the queue until you resume it.\n", "")
    before = time.time()
    state = _json(shell, "pause", "--for", "90m")
    assert before + 5400 <= state["hold"]["until"] <= time.time() + 5400
    # Hours ahead at any hour of the day.
    hour = time.localtime(time.time() + 12 * 3600).tm_hour
    state = _json(shell, "pause", "--until", f"{hour}:00")
    shown = time.localtime(state["hold"]["until"])
    assert (shown.tm_hour, shown.tm_min) == (hour, 0)
    assert time.time() < state["hold"]["until"] <= time.time() + 25 * 3600
    assert _json(shell, "resume")["hold"] is None
    status, out, _ = shell("resume")
    assert (status, out) == (0, "Training may run at any time.\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--for", "2h", "--until", "23:00"),
        ("--for", "soon"),
        ("--until", "25:99"),
        ("--until", "2001-01-01T00:00"),
    ],
)
def test_a_pause_that_cannot_be_is_refused(shell: Run, arguments: tuple[str, ...]) -> None:
    status, _, err = shell("pause", *arguments)
    assert status != 0
    assert err
    assert _json(shell, "policy", "show")["state"]["hold"] is None


def test_the_life_of_a_schedule(shell: Run) -> None:
    shown = _json(shell, "schedule", "add", "mon-fri", "23:00-07:00")
    nights = {"days": ["mon", "tue", "wed", "thu", "fri"], "start": "23:00", "end": "07:00"}
    assert shown["windows"] == [nights]
    shown = _json(shell, "schedule", "add", "sat,sun", "9-24")
    assert shown["windows"] == [nights, {"days": ["sat", "sun"], "start": "09:00", "end": "24:00"}]
    again = _json(shell, "schedule", "add", "mon-fri", "23:00-07:00")
    assert again["windows"] == shown["windows"], "the same hours are there once"
    _, out, _ = shell("schedule", "show")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[:3] == ["days hours", "mon-fri 23:00-07:00", "sat,sun 09:00-24:00"]
    assert lines[3].startswith(("The window opens ", "Training may run until "))
    cleared = _json(shell, "schedule", "clear")
    assert cleared["windows"] == []
    assert cleared["state"]["may_run"]


@pytest.mark.parametrize(("days", "hours"), [("someday", "23:00-07:00"), ("mon", "23:00")])
def test_hours_that_cannot_be_are_refused(shell: Run, days: str, hours: str) -> None:
    status, out, _ = shell("schedule", "add", days, hours, "--json")
    assert status == 76
    assert json.loads(out)["error"]["code"] == "DAEMON-REQUEST-INVALID"
    assert _json(shell, "schedule", "show")["windows"] == []


def test_settings_are_changed_and_shown(shell: Run) -> None:
    changed = _json(
        shell,
        *("policy", "set", "exclusive_apps=cs2, elden*", "max_gpu_celsius=80"),
        *("detect_games=no", "time_zone=Europe/Berlin"),
    )
    assert changed["exclusive_apps"] == ["cs2", "elden*"]
    assert (changed["max_gpu_celsius"], changed["detect_games"]) == (80, False)
    shown = _json(shell, "policy", "show")
    assert shown["policy"] == changed
    _, out, _ = shell("policy", "show")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert {"exclusive_apps cs2, elden*", "detect_games no", "time_zone Europe/Berlin"} <= set(
        lines
    )
    _, out, _ = shell("policy", "set", "exclusive_apps=", "detect_games=yes", "time_zone=")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert {"exclusive_apps none", "detect_games yes", "time_zone the system's"} <= set(lines)
    _json(shell, "policy", "set", "max_gpu_celsius=87")


@pytest.mark.parametrize(
    "setting",
    ["max_celsius=80", "max_gpu_celsius", "max_gpu_celsius=warm", "max_gpu_celsius=10", "windows="],
)
def test_settings_that_cannot_be_are_refused(shell: Run, setting: str) -> None:
    before = _json(shell, "policy", "show")["policy"]
    status, out, err = shell("policy", "set", "foreign_vram_mb=2000", setting, "--json")
    assert status == 76
    assert json.loads(out)["error"]["code"] == "DAEMON-REQUEST-INVALID"
    assert setting.partition("=")[0] in err
    assert _json(shell, "policy", "show")["policy"] == before, "all or nothing"


def test_a_setting_is_read_as_its_kind() -> None:
    texts = ["pause_after_seconds=2.5", "detect_games=ON", "ignored_processes=Xorg,kwin*"]
    assert parse_settings(texts) == {
        "pause_after_seconds": 2.5,
        "detect_games": True,
        "ignored_processes": ["Xorg", "kwin*"],
    }
    with pytest.raises(SlidepackError, match="detect_games=perhaps"):
        parse_settings(["detect_games=perhaps"])
