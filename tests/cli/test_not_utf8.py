"""Names whose bytes are not UTF-8, as old archives leave them: sent, or refused by name."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons import DaemonProcess
from support.tiny import chat_rows, write_jsonl

from slidepack.cli.client import DaemonClient
from slidepack.cli.main import run
from slidepack.engine.contract.errors import SlidepackError

_ODD = os.fsdecode(b"caf\xe9")
_SHOWN = "caf\ufffd"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that these tests share; none of them trains."""
    process = DaemonProcess(tmp_path_factory.mktemp("odd") / "home")
    try:
        yield process.start()
    finally:
        process.clean_up()


@pytest.mark.parametrize(
    ("name", "shown", "content", "family"),
    [
        (
            b"caf\xe9.jsonl",
            "caf\ufffd.jsonl",
            '{"prompt": "p 1", "completion": "c"}\n',
            "completion",
        ),
        (b"\xff\xfe.csv", "\ufffd\ufffd.csv", "prompt,completion\np 2,c\np 3,c\n", "completion"),
        (b"z\xc3\xbcr\xfcck.TXT", "z\u00fcr\ufffdck.TXT", "prompt,completion\np 4,c\n", "text"),
    ],
)
def test_a_file_of_any_name_is_uploaded(
    host: DaemonProcess, tmp_path: Path, name: bytes, shown: str, content: str, family: str
) -> None:
    path = tmp_path / os.fsdecode(name)
    path.write_text(content)
    dataset = DaemonClient(host.home).upload(path)
    assert (dataset["name"], dataset["report"]["family"]) == (shown, family)


@pytest.mark.parametrize(
    "arguments",
    [
        ("models", "add", f"/nobody/{_ODD}"),
        ("models", "add", "/nobody/model", "--name", _ODD),
        ("jobs", "add", "ROWS", "--model", _ODD),
        ("jobs", "add", "ROWS", "--model", "tiny", "--name", _ODD),
        ("jobs", "add", "ROWS", "--model", "tiny", "--prompt", "Hi?", "--prompt", f"{_ODD}?"),
        ("jobs", "add", "ROWS", "--model", "tiny", "--format", _ODD),
        ("jobs", "add", "ROWS", "--model", "tiny", "--map", f"answer={_ODD}"),
    ],
    ids=" ".join,
)
def test_a_request_that_cannot_be_sent_names_the_value(
    host: DaemonProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
) -> None:
    monkeypatch.setenv("SLIDEPACK_HOME", str(host.home))
    rows = write_jsonl(tmp_path / "rows.jsonl", chat_rows(3))
    status = run([str(rows) if part == "ROWS" else part for part in arguments] + ["--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (status, error["code"]) == (76, "DAEMON-REQUEST-INVALID")
    assert _SHOWN in error["why"]
    assert "Rename it" in error["fix"]


def test_a_stream_that_cannot_be_asked_for_names_the_value(host: DaemonProcess) -> None:
    with pytest.raises(SlidepackError) as caught:
        next(DaemonClient(host.home).stream("/chats", {"deep": [{"text": _ODD}]}))
    report = caught.value.report
    assert (report.code, report.why) == ("DAEMON-REQUEST-INVALID", _SHOWN)


@pytest.mark.parametrize("field", ["to", "base", "name", "job"])
def test_an_export_that_cannot_be_asked_for_names_the_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    folder = tmp_path / (_ODD if field == "job" else "result")
    folder.mkdir()
    given = {"to": str(tmp_path / "out"), "base": str(tmp_path), "name": "bot"}
    given |= {} if field == "job" else {field: f"{tmp_path}/{_ODD}"}
    options = [part for name, value in given.items() for part in (f"--{name}", value)]
    status = run(["export", str(folder), *options, "--format", "peft", "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (status, error["code"]) == (94, "EXPORT-INVALID")
    assert _SHOWN in error["why"]
    assert "Rename it" in error["fix"]
