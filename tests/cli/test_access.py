"""`slidepack password` and `slidepack tokens`, with a daemon and without one."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli.conftest import Command
from support.daemons import DaemonProcess
from support.queueing import Farm
from support.stores import open_stores

from slidepack.cli.main import run
from slidepack.daemon.passwords import Passwords
from slidepack.daemon.store.access import Sessions
from slidepack.daemon.store.documents import Documents

_PASSWORD = "correct horse battery"


@pytest.mark.full
def test_tokens_are_made_listed_and_removed(served_farm: Farm, command: Command) -> None:
    _, made = command("tokens", "add", "a script", "--scope", "jobs", "--days", "7")
    assert made["record"]["scopes"] == ["jobs"]
    ours = {"authorization": f"Bearer {made['token']}"}
    url = f"{served_farm.daemon.address.url}/api/v1/jobs"
    assert httpx.get(url, headers=ours, trust_env=False).status_code == 200
    _, listed = command("tokens", "list")
    (record,) = [token for token in listed if token["name"] == "a script"]
    assert record["id"] == made["record"]["id"]
    assert made["token"] not in str(listed)
    assert command("tokens", "rm", str(record["id"]))[0] == 0
    assert httpx.get(url, headers=ours, trust_env=False).status_code == 401
    status, refusal = command("tokens", "rm", str(record["id"]))
    assert (status, refusal["error"]["code"]) == (89, "DAEMON-TOKEN-NOT-FOUND")
    status, refusal = command("tokens", "add", "x", "--scope", "all")
    assert (status, refusal["error"]["code"]) == (76, "DAEMON-REQUEST-INVALID")


@pytest.mark.full
def test_a_token_alone_goes_to_standard_output(
    served_farm: Farm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIDEPACK_HOME", str(served_farm.daemon.home))
    assert run(["tokens", "add", "plain"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("slp_")
    assert shown.out.count("\n") == 1
    assert "not shown again" in shown.err


def _password(home: Path, typed: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("SLIDEPACK_HOME", str(home))
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    return run(["password"])


def test_a_password_is_set_without_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    assert _password(home, "short\n", monkeypatch) == 87
    assert _password(home, f"{_PASSWORD}\n", monkeypatch) == 0
    database = open_stores(home).database
    Sessions(database).add("somebody", 5.0)
    assert Passwords(Documents(database)).matches(_PASSWORD)
    # A daemon that was killed left its address behind.
    (home / "daemon.json").write_text('{"url":"http://127.0.0.1:1","token":"x","pid":1}')
    assert _password(home, "another one entirely\r\n", monkeypatch) == 0
    assert Passwords(Documents(database)).matches("another one entirely")
    assert not Sessions(database).known("somebody", 0.0)
    shown = capsys.readouterr()
    assert _PASSWORD not in shown.out + shown.err
    assert "another one" not in shown.out + shown.err


@pytest.mark.full
def test_a_password_is_set_while_the_daemon_runs(
    daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _password(daemon.home, f"{_PASSWORD}\n", monkeypatch) == 0
    state: Any = daemon.api("GET", "/access")
    assert state["password_set_at"] is not None
    assert _PASSWORD not in daemon.log


def test_a_password_is_no_argument(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slidepack.cli", "password", _PASSWORD],
        env=os.environ | {"SLIDEPACK_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
