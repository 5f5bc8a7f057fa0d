"""The process: its protocol, its ends, and adapters that are broken."""

import fcntl
import json
import shutil
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.chats import PROMPTS, Chat, chat_model, peft_adapter
from support.families import tiny_family
from support.judges import tiny_llama
from support.waiting import PATIENCE, wait_until

from slidepack.engine.chat.events import (
    AnyEvent,
    Done,
    Failed,
    Loading,
    Ready,
    Token,
    VoiceLoaded,
    decode_event,
)


class Process:
    """A chat process, and what it has told."""

    def __init__(self, model: Path, *, reads: bool = True, **fields: Any) -> None:
        path = model.parent / "request.json"
        path.write_text(json.dumps({"model": str(model), "context": 200} | fields))
        command = [sys.executable, "-P", "-m", "slidepack.engine.chat", str(path)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.events: list[AnyEvent] = []
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def send(self, *lines: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        for line in lines:
            data = line if isinstance(line, bytes) else msgspec.json.encode(line)
            self.process.stdin.write(data + b"\n")
        self.process.stdin.flush()

    def until(self, wanted: Callable[[AnyEvent], bool]) -> AnyEvent:
        while True:
            event = self.next()
            assert event is not None, self.process.stderr and self.process.stderr.read().decode()
            if wanted(event):
                return event

    def next(self) -> AnyEvent | None:
        line = self._lines.get(timeout=PATIENCE)
        if not line:
            return None
        self.events.append(decode_event(line))
        return self.events[-1]

    def done(self, ask_id: str, voice: str = "base") -> Done:
        def wanted(event: AnyEvent) -> bool:
            return isinstance(event, Done) and (event.id, event.voice) == (ask_id, voice)

        found = next((event for event in self.events if wanted(event)), None) or self.until(wanted)
        assert isinstance(found, Done)
        return found

    def text(self, ask_id: str, voice: str = "base") -> str:
        told = (event for event in self.events if isinstance(event, Token))
        return "".join(e.text for e in told if (e.id, e.voice) == (ask_id, voice))

    def failed(self) -> Failed:
        event = self.until(lambda event: isinstance(event, Failed))
        assert isinstance(event, Failed)
        return event

    def ready(self) -> Ready:
        event = self.until(lambda event: isinstance(event, Ready))
        assert isinstance(event, Ready)
        return event

    def end(self) -> int:
        """Read to the end; return the exit code."""
        while self.next() is not None:
            pass
        return self.process.wait(timeout=PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    processes: list[Process] = []

    def begin(model: Path, **fields: Any) -> Process:
        processes.append(Process(model, **fields))
        return processes[-1]

    yield begin
    for process in processes:
        process.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("chat") / "model")


@pytest.fixture(scope="module")
def tuned(model: Path) -> Path:
    peft_adapter(model, model.parent / "tuned")
    return model.parent / "tuned"


def _ask(ask_id: str, *voices: str, most: int = 24, prompt: str = PROMPTS[2]) -> dict[str, Any]:
    asked = {"type": "ask", "id": ask_id, "prompt": prompt, "max_tokens": most}
    return asked | ({"voices": voices} if voices else {})


def _voice(name: str, folder: Path) -> dict[str, Any]:
    return {"type": "load", "voice": {"name": name, "folder": str(folder)}}


@pytest.mark.full
def test_answers_commands_and_the_end(start: Start, model: Path, tuned: Path) -> None:
    chat = start(model, voices=[{"name": "tuned", "folder": str(tuned)}])
    ready = chat.ready()
    loading = [event for event in chat.events if isinstance(event, Loading)]
    assert [event.done for event in loading] == list(range(1, loading[-1].total + 1))
    assert ready.context == 200
    assert ready.weight_bytes > 0
    chat.send(_ask("a", "tuned", "base"))
    judge = Chat(model, {"tuned": tuned})
    judge.ask("a", PROMPTS[2], ("tuned", "base"))
    judge.run()
    for voice in ("tuned", "base"):
        done = chat.done("a", voice)
        assert chat.text("a", voice) == judge.text("a", voice)
        assert (done.finish_reason, done.new_tokens) == (
            judge.done("a", voice).finish_reason,
            judge.done("a", voice).new_tokens,
        )
        assert done.first_token_seconds is not None
        assert done.first_token_seconds > 0.0
    chat.send({"type": "unload", "name": "tuned"}, _ask("b", "tuned"))
    error = chat.done("b", "tuned").error
    assert error is not None and error.code == "CHAT-VOICE-UNKNOWN"
    chat.send(_voice("again", tuned), _ask("c", "again"))
    chat.done("c", "again")
    assert chat.text("c", "again") == judge.text("a", "tuned")
    chat.send({"type": "quit"})
    assert chat.end() == 0


def test_malformed_lines_are_told_and_lose_nothing(start: Start, model: Path) -> None:
    chat = start(model)
    chat.ready()
    bad: list[tuple[bytes, str]] = [
        (b"no json", ""),
        (b"[1, 2]", ""),
        (b'{"type": "nonsense", "id": "x"}', "x"),
        (b'{"type": "ask", "id": "y", "prompt": "a", "surprise": 1}', "y"),
        (b'{"type": "ask", "id": "z"}', "z"),
        (b'{"type": "ask", "id": "t", "prompt": "a", "sampling": {"top_p": 7}}', "t"),
        (b'{"type": "ask", "id": "e", "prompt": ""}', "e"),
        (b'{"type": "ask", "id": "\xff", "prompt": "a"}', ""),
        (b"[" * 100_000, ""),
        (b'{"type": "load", "voice": {"name": "base", "folder": "/"}}', ""),
        (b'{"type": "ask", "id": "l", "prompt": "' + b"a" * (17 << 20) + b'"}', ""),
    ]
    chat.send(_ask("first", most=60))
    chat.send(*(line for line, _ in bad if b'"e"' not in line))
    chat.send(b"", _ask("last"))
    for line, ask_id in bad:
        if b'"e"' in line:
            continue
        failed = chat.failed()
        assert (failed.error.code, failed.id, failed.fatal) == (
            "CHAT-COMMAND-INVALID",
            ask_id,
            False,
        )
    chat.send(bad[6][0])
    error = chat.done("e").error
    assert error is not None and error.code == "CHAT-PROMPT-INVALID"
    judge = Chat(model)
    for ask_id, most in (("first", 60), ("last", 24)):
        chat.done(ask_id)
        assert chat.text(ask_id) == judge.answer(ask_id, PROMPTS[2], most=most)


@pytest.mark.full
def test_the_end_of_standard_input_is_the_end(start: Start, model: Path) -> None:
    chat = start(model, context=256)
    chat.ready()
    chat.send(_ask("a", most=200), {"type": "stop", "id": "never asked"})
    assert chat.process.stdin is not None
    chat.process.stdin.close()
    assert chat.end() == 0
    assert chat.done("a").finish_reason in ("stopped", "stop", "length")


def test_a_signal_ends_it_at_the_next_token(start: Start, model: Path) -> None:
    chat = start(model, context=256)
    chat.ready()
    # Without a seed it may end before it has said a word.
    sampling = {"temperature": 1.0, "seed": 0}
    chat.send({"type": "ask", "id": "a", "prompt": "x", "sampling": sampling})
    chat.until(lambda event: isinstance(event, Token))
    chat.process.send_signal(signal.SIGTERM)
    assert chat.end() == 75
    assert isinstance(chat.events[-1], Done)


def test_a_signal_ends_it_while_it_waits_for_a_command(start: Start, model: Path) -> None:
    chat = start(model)
    chat.ready()
    chat.process.send_signal(signal.SIGTERM)
    assert chat.end() == 75


def _unread(chat: Process) -> int:
    """Return how many bytes are in the pipe of events."""
    assert chat.process.stdout is not None
    count = fcntl.ioctl(chat.process.stdout, termios.FIONREAD, bytes(4))
    return int.from_bytes(count, sys.byteorder)


def test_a_reader_that_does_not_read_holds_up_no_end(start: Start, model: Path) -> None:
    chat = start(model, reads=False)
    assert chat.process.stdout is not None
    # More answers than the pipe takes, so the process waits for somebody to read them.
    chat.send(*[b"no command"] * 2000)
    wait_until(lambda: _unread(chat) > 60_000, what="the pipe is full")
    chat.process.send_signal(signal.SIGTERM)
    assert chat.process.wait(timeout=PATIENCE) == 75


def test_a_reader_that_is_gone_is_the_end(start: Start, model: Path) -> None:
    chat = start(model, reads=False)
    assert chat.process.stdout is not None
    chat.process.stdout.close()
    assert chat.process.wait(timeout=PATIENCE) == 0


def _broken_adapters(tuned: Path, root: Path) -> dict[str, Path]:
    """Return copies of an adapter, each broken in its own way."""
    names = ("missing", "no-config", "no-weights", "cut", "nan", "pickle", "dora", "wrong-base")
    folders = {name: root / name for name in names}
    for name, folder in folders.items():
        if name != "missing":
            shutil.copytree(tuned, folder)
    weights = "adapter_model.safetensors"
    (folders["no-config"] / "adapter_config.json").unlink()
    (folders["no-weights"] / weights).unlink()
    cut = folders["cut"] / weights
    cut.write_bytes(cut.read_bytes()[:-100])
    tensors = load_file(tuned / weights)
    first = next(iter(tensors))
    poisoned = tensors | {first: torch.full_like(tensors[first], float("nan"))}
    save_file(poisoned, folders["nan"] / weights)
    (folders["pickle"] / weights).rename(folders["pickle"] / "adapter_model.bin")
    config = json.loads((tuned / "adapter_config.json").read_text()) | {"use_dora": True}
    (folders["dora"] / "adapter_config.json").write_text(json.dumps(config))
    tiny_llama(root / "other", kv_heads=2, tied=False)
    shutil.rmtree(folders["wrong-base"])
    peft_adapter(root / "other", folders["wrong-base"])
    return folders


def test_broken_adapters_are_refused_while_others_go_on(
    start: Start, model: Path, tuned: Path, tmp_path: Path
) -> None:
    folders = _broken_adapters(tuned, tmp_path)
    chat = start(
        model,
        voices=[
            {"name": "nan", "folder": str(folders["nan"])},
            {"name": "other", "folder": str(tuned), "content_hash": "0" * 64},
            {"name": "tuned", "folder": str(tuned)},
        ],
    )
    chat.ready()
    codes = {event.voice: event.error.code for event in chat.events if isinstance(event, Failed)}
    assert codes == {"nan": "RUN-FOLDER-BROKEN", "other": "MODEL-CHANGED"}
    chat.send(_ask("a", "tuned", "base", most=100))
    for name, folder in folders.items():
        chat.send(_voice(name, folder))
        failed = chat.failed()
        expected = "MODEL-PICKLE" if name == "pickle" else "RUN-FOLDER-BROKEN"
        assert (failed.voice, failed.error.code, failed.fatal) == (name, expected, False), failed
    chat.send(_voice("tuned", tuned))
    assert chat.failed().error.code == "CHAT-NAME-TAKEN"
    judge = Chat(model, {"tuned": tuned})
    judge.ask("a", PROMPTS[2], ("tuned", "base"), 100)
    judge.run()
    for voice in ("tuned", "base"):
        chat.done("a", voice)
        assert chat.text("a", voice) == judge.text("a", voice)
    assert [event.voice for event in chat.events if isinstance(event, VoiceLoaded)] == ["tuned"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("fields", "code", "exit_code"),
    [
        ({"content_hash": "0" * 64}, "MODEL-CHANGED", 28),
        ({"device": "cuda:0"}, "GPU-UNUSABLE", 30),
        ({"memory_cap_bytes": 1000}, "CHAT-NO-ROOM", 106),
        ({"surprise": 1}, "CHAT-REQUEST-INVALID", 100),
    ],
)
def test_what_cannot_start_says_why(
    start: Start, model: Path, fields: dict[str, Any], code: str, exit_code: int
) -> None:
    if code == "GPU-UNUSABLE" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    chat = start(model, **fields)
    failed = chat.failed()
    assert (failed.error.code, failed.fatal) == (code, True)
    assert chat.end() == exit_code


@pytest.mark.full
def test_a_base_in_four_bits_answers_with_adapters(
    start: Start, tmp_path: Path, tuned: Path
) -> None:
    model = chat_model(tmp_path / "model", "qwen3")
    peft_adapter(model, tmp_path / "tuned")
    chat = start(
        model, precision="nf4", voices=[{"name": "tuned", "folder": str(tmp_path / "tuned")}]
    )
    assert chat.ready().precision == "nf4, widened to float32"
    chat.send(_ask("a", "base", "tuned"), _ask("b", "tuned"), _ask("c", "base"))
    for ask_id, voice in (("a", "base"), ("a", "tuned"), ("b", "tuned"), ("c", "base")):
        assert chat.done(ask_id, voice).new_tokens > 0
    assert chat.text("a", "base") == chat.text("c", "base")
    assert chat.text("a", "tuned") == chat.text("b", "tuned") != chat.text("a", "base")


@pytest.mark.full
def test_a_model_that_was_fully_fine_tuned_needs_no_base(start: Start, tmp_path: Path) -> None:
    model = chat_model(tmp_path / "model")
    tiny_family(model, "llama", seed=9)
    chat = start(model)
    chat.ready()
    chat.send(_ask("a"))
    chat.done("a")
    assert chat.text("a") == Chat(model).answer("a", PROMPTS[2])
