"""What is refused before anything runs, and that nothing of the contract loads torch."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slidepack.engine.chat.contract import (
    AnyCommand,
    Ask,
    ChatRequest,
    LoadVoice,
    Message,
    Quit,
    Sampling,
    Stop,
    UnloadVoice,
    Voice,
    decode_command,
    encode_command,
    id_of,
    read_request,
)
from slidepack.engine.chat.events import Done, decode_event, encode_event
from slidepack.engine.contract.errors import ErrorReport, SlidepackError


@pytest.mark.parametrize(
    "command",
    [
        Ask(id="a", messages=(Message(role="user", content="世\n界"),), stop=("\n",)),
        Ask(id="a", voices=("x", "base"), prompt="", sampling=Sampling(seed=2**64 - 1)),
        Stop(id="a"),
        LoadVoice(voice=Voice(name="x", folder="/a")),
        UnloadVoice(name="x"),
        Quit(),
    ],
)
def test_commands_are_one_line_and_come_back(command: AnyCommand) -> None:
    line = encode_command(command)
    assert line.count(b"\n") == 1
    assert decode_command(line) == command


def test_events_come_back() -> None:
    event = Done(
        id="a",
        voice="base",
        finish_reason="error",
        prompt_tokens=1,
        cached_tokens=0,
        new_tokens=0,
        tokens_per_second=0.0,
        first_token_seconds=None,
        error=ErrorReport(code="CHAT-NO-ROOM", what="What.", why="", fix=""),
    )
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -0.1},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_k": -1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"seed": -1},
        {"seed": 2**64},
    ],
    ids=str,
)
def test_sampling_out_of_range_is_refused(values: dict[str, Any]) -> None:
    (name,) = values
    line = msgspec.json.encode({"type": "ask", "id": "a", "prompt": "x", "sampling": values})
    with pytest.raises(SlidepackError, match=name) as caught:
        decode_command(line)
    assert caught.value.report.code == "CHAT-COMMAND-INVALID"
    assert id_of(line) == "a"


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "x"}], "prompt": "x"},
        {"prompt": "x", "voices": []},
        {"prompt": "x", "voices": ["a", "a"]},
        {"prompt": "x", "max_tokens": 0},
        {"prompt": "x", "stop": [""]},
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": "{}"}]},
        {"messages": [{"role": "user", "content": "x"}], "tools": "no json"},
    ],
    ids=str,
)
def test_asks_that_ask_nothing_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(SlidepackError, match="CHAT-COMMAND-INVALID"):
        decode_command(msgspec.json.encode({"type": "ask", "id": "a"} | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "relative"},
        {"seats": 0},
        {"threads": 0},
        {"context": 1},
        {"memory_cap_bytes": -1},
        {"voices": [{"name": "a", "folder": "/a"}, {"name": "a", "folder": "/b"}]},
        {"voices": [{"name": "base", "folder": "/a"}]},
        {"voices": [{"name": "a", "folder": "b"}]},
        {"unknown": 1},
    ],
    ids=str,
)
def test_requests_that_cannot_be_meant_are_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = tmp_path / "request.json"
    path.write_bytes(msgspec.json.encode({"model": "/m"}))
    assert read_request(path) == ChatRequest(model="/m")
    path.write_bytes(msgspec.json.encode({"model": "/m"} | fields))
    with pytest.raises(SlidepackError, match="CHAT-REQUEST-INVALID"):
        read_request(path)


def test_torch_stays_out_of_the_contract() -> None:
    code = "import sys, slidepack.engine.chat.contract; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
