"""`slidepack bench chat`: what it starts and prints, and a real measurement of a tiny model."""

import json
import subprocess
import sys
from pathlib import Path
from subprocess import Popen
from typing import Any

import msgspec
import pytest
from support.chats import chat_model

from slidepack.cli import bench_chat
from slidepack.cli.main import run


def _side(rate: float, first: float) -> dict[str, Any]:
    return {"tokens_per_second": rate, "first_token_seconds": first, "rounds": []}


RESULT = {
    "options": {"voices": 3},
    "device": "cpu",
    "precision": "float32",
    "versions": {"torch": "2.13.0", "transformers": "5.24.0", "peft": "0.21"},
    "cases": {
        "one": {"ours": _side(30.0, 0.25), "theirs": _side(24.0, 0.3)},
        "voices": {"ours": _side(1234.5, 0.75), "theirs": _side(617.25, 0.5)},
    },
}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Answer in place of the benchmark's process; return the commands."""
    seen: list[list[str]] = []

    def popen(command: list[str], **kwargs: Any) -> Popen[str]:
        seen.append(command)
        said = json.dumps(RESULT) + "\n"
        return Popen([sys.executable, "-c", f"import sys; sys.stdout.write({said!r})"], **kwargs)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setenv("COLUMNS", "160")
    return seen


def test_it_prints_both_sides_and_their_ratio(
    commands: list[list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = chat_model(tmp_path / "model")
    bench_chat.chat(model, voices=3, threads=2)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["one", "answer", "30.0", "0.250", "s", "24.0", "0.300", "s", "1.25"]
    assert lines[2][:4] == ["3", "voices", "at", "once"]
    assert lines[2][4:] == ["1,234.5", "0.750", "s", "617.2", "0.500", "s", "2.00"]
    (command,) = commands
    assert command[1:4] == ["-P", "-m", "slidepack.engine.bench_chat"]
    options = json.loads(command[4])
    assert (options["model"], options["voices"], options["threads"]) == (str(model), 3, 2)


def test_it_does_without_the_rival(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    alone = RESULT | {
        "versions": {"torch": "2.13.0"},
        "cases": {"one": {"ours": _side(30.0, 0.25)}},
    }
    monkeypatch.setattr(bench_chat, "run_benchmark", lambda *_text, **_module: alone)
    bench_chat.chat(chat_model(tmp_path / "model"))
    said = capsys.readouterr().out
    assert "30.0" in said
    assert "are not installed" in said


@pytest.mark.full
def test_it_measures_a_real_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = chat_model(tmp_path / "model")
    sizes = ["--prompt", "20", "--tokens", "8", "--voices", "2", "--rounds", "2"]
    assert run(["bench", "chat", "--model", str(model), *sizes, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    for case in ("one", "voices"):
        for side in ("ours", "theirs"):
            rounds = result["cases"][case][side]["rounds"]
            assert len(rounds) == 2
            assert all(one["tokens_per_second"] > 0.0 for one in rounds)
            assert all(one["first_token_seconds"] > 0.0 for one in rounds)


def test_what_cannot_be_measured_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["bench", "chat", "--model", str(tmp_path / "none"), "--json"]) == 20
    assert msgspec.json.decode(capsys.readouterr().out)["error"]["code"] == "MODEL-NOT-FOUND"
