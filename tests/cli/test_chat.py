"""`slidepack chat`: one question for scripts, a loop for people, and its ends."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.chat_farm import chat_farm
from support.queueing import Farm

from slidepack.cli.main import run
from slidepack.engine.contract.errors import CATALOGUE

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def farm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with chat_farm(tiny_model, tmp_path_factory.mktemp("chat")) as made:
        yield made


@pytest.fixture(autouse=True)
def _home(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIDEPACK_HOME", str(farm.daemon.home))
    monkeypatch.setenv("COLUMNS", "200")


def _lines(capture: Capture) -> list[dict[str, object]]:
    # Nothing else ends a line of JSON than LF, whatever a model says.
    *lines, rest = capture.readouterr().out.split("\n")
    assert not rest
    return [json.loads(line) for line in lines]


def _terminal(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    stream = io.StringIO(text)
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", stream)


@pytest.mark.full
def test_once_prints_both_voices_one_after_the_other(capsys: Capture) -> None:
    assert run(["chat", "1", "--once", "Hi", "--seed", "3", "--max-tokens", "6"]) == 0
    out = capsys.readouterr().out
    assert out.index("Job 1: ") < out.index("as it was")
    assert out.count("tokens,") == 2
    assert "changes the answers: mean logit difference" in out


@pytest.mark.full
def test_json_is_one_object_an_answer_and_a_seed_repeats_it(capsys: Capture) -> None:
    command = ["chat", "1", "--once", "Hi", "--seed", "3", "--max-tokens", "6", "--json"]
    assert run(command) == 0
    first = _lines(capsys)
    assert [line["voice"] for line in first] == ["job-1", "base"]
    assert run(command) == 0
    again = _lines(capsys)
    assert [line["answer"] for line in first] == [line["answer"] for line in again]
    assert first[0]["answer"] != first[1]["answer"]
    assert {line["new_tokens"] for line in first} <= set(range(1, 7))


def test_without_its_base_the_job_answers_alone(farm: Farm, capsys: Capture) -> None:
    assert run(["chat", "1", "--no-base", "--once", "Hi", "--json"]) == 0
    assert [line["voice"] for line in _lines(capsys)] == ["job-1"]
    assert run(["chat", "--model", farm.model, "--once", "Hi", "--json"]) == 0
    assert [line["voice"] for line in _lines(capsys)] == ["base"]


def test_the_loop_remembers_resets_and_takes_a_seed(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _terminal(monkeypatch, "Hi\nAnd you\n/reset\n/seed 4\nHi\n/quit\nnever asked\n")
    assert run(["chat", "1", "--seed", "3", "--max-tokens", "5", "--json", "--no-base"]) == 0
    first, second, third = _lines(capsys)
    sizes = [int(str(line["prompt_tokens"])) for line in (first, second, third)]
    assert sizes[1] > sizes[0] == sizes[2]
    assert [line["seed"] for line in (first, second, third)] == [3, 3, 4]
    _terminal(monkeypatch, "Hi\n/nothing\n")
    assert run(["chat", "1", "--seed", "3", "--max-tokens", "5"]) == 0
    out = capsys.readouterr().out
    assert out.count("/reset, /seed N, /quit") == 2
    assert str(first["answer"]).strip() in out


def test_a_refusal_has_its_exit_code(farm: Farm, capsys: Capture) -> None:
    for arguments, code in (
        (["chat", "77", "--once", "Hi"], "RUN-NOT-FOUND"),
        (["chat", "--once", "Hi"], "CHAT-REQUEST-INVALID"),
        (["chat", "1", "--once", "a" * 400], "CHAT-CONTEXT-FULL"),
    ):
        assert run(arguments) == CATALOGUE[code].exit_code
        assert code in capsys.readouterr().err


def test_without_a_terminal_the_loop_asks_for_once(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    assert run(["chat", "1"]) == CATALOGUE["CHAT-REQUEST-INVALID"].exit_code
    assert "--once" in capsys.readouterr().err


def test_end_lets_the_queue_go_on(farm: Farm, capsys: Capture) -> None:
    assert run(["chat", "1", "--once", "Hi", "--max-tokens", "2", "--json"]) == 0
    capsys.readouterr()
    assert run(["chat", "--end", "--json"]) == 0
    (ended,) = _lines(capsys)
    assert len(ended["ended"]) == 1  # type: ignore[arg-type]
    assert run(["chat", "--end"]) == 0
