"""`slidepack notify` and `slidepack digest`, against a served API."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.notice_app import NoticeDaemon, notice_service, serving_notices
from support.notices import Receiver, receiving

from slidepack.cli import notify
from slidepack.engine.contract.errors import SlidepackError

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NoticeDaemon]:
    monkeypatch.setenv("SLIDEPACK_HOME", str(tmp_path))
    with serving_notices(tmp_path, notice_service(tmp_path)) as served:
        yield served


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as served:
        yield served


@pytest.fixture
def call(daemon: NoticeDaemon, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command; return its exit status and what it printed."""
    app = typer.Typer()
    app.add_typer(notify.app, name="notify")
    app.command()(notify.digest)

    def run(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        status = app(arguments, standalone_mode=False)
        return status or 0, capsys.readouterr().out

    return run


def _json(call: Call, *arguments: str) -> Any:
    _, out = call(*arguments, "--json")
    assert out.count("\n") == 1, "exactly one JSON value on one line"
    return json.loads(out)


def _type(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_the_life_of_an_address(
    call: Call, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    _type(monkeypatch, receiver.url("/s3cret") + "\n")
    added = _json(call, "notify", "add", "-", "--name", "my phone")
    assert (added["id"], added["name"], added["shown"]) == (1, "my phone", "json://127.0.0.1/…")
    assert _json(call, "notify", "test", "1") == {"notifier_id": 1, "ok": True, "error": ""}
    receiver.status = 500
    status, out = call("notify", "test", "1")
    assert status == 1
    assert "500" in out
    listed = _json(call, "notify", "list")
    assert [n["name"] for n in listed["notifiers"]] == ["my phone"]
    assert [n["deliveries"][0]["state"] for n in listed["notices"]] == ["failed", "sent"]
    _, table = call("notify", "list")
    assert "my phone" in table
    assert "s3cret" not in table + str(listed) + str(added) + out
    assert _json(call, "notify", "remove", "1") == {"removed": 1}
    _, table = call("notify", "list")
    assert "removed: sent" in table


def test_an_address_among_the_arguments_is_warned_of(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out = call("notify", "add", "json://127.0.0.1:9/s3cret")
    assert "visible in this command's arguments" in out
    _type(monkeypatch, "json://127.0.0.1:9/other\n")
    _, out = call("notify", "add")
    assert "Added 2" in out
    assert "visible" not in out


def test_a_wrong_address_is_refused_without_its_secret(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("nosuch://s3cret\n", "\n", "s3cret\n"):
        _type(monkeypatch, text)
        with pytest.raises(SlidepackError) as caught:
            call("notify", "add", "-", "--json")
        assert caught.value.report.code == "DAEMON-NOTIFIER-INVALID"
        assert "s3cret" not in str(caught.value)
    for arguments in (("remove", "9"), ("test", "9")):
        with pytest.raises(SlidepackError, match="no notification address 9"):
            call("notify", *arguments)


def test_settings_are_shown_and_changed_one_by_one(call: Call) -> None:
    _, out = call("notify", "settings")
    assert out.splitlines() == [
        "Sent: finished, failed, paused, needs_you, digest",
        "Quiet hours: none",
        "Digest: 08:00",
    ]
    changed = _json(call, "notify", "settings", "--quiet", "23:00-07:00")
    assert (changed["quiet_from"], changed["quiet_to"]) == ("23:00", "07:00")
    changed = _json(call, "notify", "settings", "--send", "failed", "--send", "digest")
    assert changed["sends"] == ["failed", "digest"]
    changed = _json(call, "notify", "settings", "--digest-at", "window")
    assert changed == {
        "sends": ["failed", "digest"],
        "quiet_from": "23:00",
        "quiet_to": "07:00",
        "digest_at": "window",
    }
    call("notify", "settings", "--send", "none", "--quiet", "none", "--digest-at", "none")
    _, out = call("notify", "settings")
    assert out.splitlines() == ["Sent: nothing", "Quiet hours: none", "Digest: none"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--quiet", "23:00"),
        ("--quiet", "23:00-23:00"),
        ("--quiet", "late-early"),
        ("--send", "everything"),
        ("--digest-at", "noon"),
    ],
)
def test_settings_that_cannot_work_are_refused(call: Call, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SlidepackError) as caught:
        call("notify", "settings", *arguments)
    assert caught.value.report.code == "DAEMON-REQUEST-INVALID"
    assert caught.value.report.fix


def test_the_digest_is_told(call: Call) -> None:
    _, out = call("digest")
    assert out.splitlines() == ["Slidepack: nothing ran", "Tonight: nothing is queued"]
    assert _json(call, "digest")["lines"] == ["Tonight: nothing is queued"]


def test_without_a_daemon_each_command_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIDEPACK_HOME", str(tmp_path / "nobody"))
    for arguments in (["list"], ["add", "json://h"], ["remove", "1"], ["test", "1"], ["settings"]):
        with pytest.raises(SlidepackError, match="DAEMON-NOT-RUNNING"):
            notify.app(arguments, standalone_mode=False)
    with pytest.raises(SlidepackError, match="DAEMON-NOT-RUNNING"):
        notify.digest()
