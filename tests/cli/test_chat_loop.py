"""The loop of a chat takes whatever is typed, and shows whatever is answered."""

import io
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from support.line_ends import TEXT

from slidepack.cli.chat_loop import ChatLoop
from slidepack.cli.chat_speakers import Settings, Speaker
from slidepack.cli.client import DaemonClient
from slidepack.engine.contract.errors import SlidepackError

Capture = pytest.CaptureFixture[str]

_DONE = {"voice": "base", "error": None, "finish_reason": "eos", "new_tokens": 1} | {
    "prompt_tokens": 1,
    "tokens_per_second": 1.0,
}


class _Parrot(Speaker):
    """Says its words, piece by piece."""

    title = ""
    pieces: Sequence[str] = ()

    def open(self) -> dict[str, Any]:
        """Return a chat that is ready."""
        self.titles = {"base": self.title}
        return {"id": 1, "state": "ready", "error": None, "voices": []}

    def ask(
        self, session: dict[str, Any], question: str, settings: Settings
    ) -> Generator[tuple[str, Any], None, None]:
        """Yield the pieces."""
        for piece in self.pieces:
            yield "token", {"voice": "base", "text": piece}
        yield "done", _DONE


class _Listener(ChatLoop):
    """Notes the questions."""

    asked: list[str]

    def ask(self, question: str) -> SlidepackError | None:
        """Note a question."""
        self.asked.append(question)
        return None


def _settings() -> Settings:
    return Settings(system="", seed=3, temperature=0.0, top_p=1.0, max_tokens=8)


@pytest.fixture
def client() -> DaemonClient:
    # Nothing is asked of it.
    return object.__new__(DaemonClient)


def _type(monkeypatch: pytest.MonkeyPatch, data: bytes, errors: str = "strict") -> None:
    stream = io.TextIOWrapper(io.BytesIO(data), "utf-8", errors)
    monkeypatch.setattr("sys.stdin", stream)


@pytest.mark.parametrize(
    ("typed", "seed"),
    [
        *((text, 3) for text in ("²", "①", "٣", "4²", "-1", "1.5", "", "0x1", "4 5")),
        *((str(number), 3) for number in (1 << 64, 10**20, 10**4000)),
        ("9" * 5000, 3),
        (str((1 << 64) - 1), (1 << 64) - 1),
        (" 007 ", 7),
    ],
    ids=lambda value: str(value)[:12],
)
def test_what_is_no_seed_leaves_it_as_it_was(
    typed: str, seed: int, client: DaemonClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    _type(monkeypatch, f"/seed {typed}\n".encode())
    settings = _settings()
    ChatLoop(client, [], settings, json_output=True).run()
    assert settings.seed == seed


@pytest.mark.parametrize("json_output", [True, False])
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize(
    ("typed", "question"),
    [
        (b"caf\xe9", "caf\ufffd"),
        (b"\xff\xfeH", "\ufffd\ufffdH"),
        (b"\xed\xa0\x80", "\ufffd" * 3),
        ("cut é".encode()[:-1], "cut \ufffd"),
        ("é 日本".encode(), "é 日本"),
    ],
)
def test_a_line_that_is_not_utf8_is_a_question_all_the_same(
    typed: bytes,
    question: str,
    errors: str,
    json_output: bool,
    client: DaemonClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _type(monkeypatch, typed + b"\nand on\n", errors)
    loop = _Listener(client, [], _settings(), json_output=json_output)
    loop.asked = []
    loop.run()
    assert loop.asked == [question, "and on"]


@pytest.mark.parametrize("title", ["map :a: to :x:", "[bold]", "a folder\\", "x\x1b[2J", "a\nb"])
@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("Bonjour\u00a0! 10\u202f000 km", "Bonjour\u00a0! 10\u202f000 km"),
        ("می\u200cروم", "می\u200cروم"),
        ("👩\u200d👧\u3000[b]:a:[/b]\\", "👩\u200d👧\u3000[b]:a:[/b]\\"),
        ("x\x1b[2J\x1b]0;owned\u202e", "x[2J]0;owned"),
        ("a\r\nb\u2028c\td", "a\nb\nc\td"),
        (TEXT, "012345\n6\n7\n"),
    ],
)
def test_an_answer_in_pieces_is_shown_as_it_is(
    answer: str, shown: str, title: str, client: DaemonClient, capsys: Capture
) -> None:
    parrot = _Parrot(client, {}, ("base",))
    parrot.title, parrot.pieces = title, answer
    assert ChatLoop(client, [parrot], _settings(), json_output=False).ask("?") is None
    heading = title.replace("\x1b", "").replace("\n", " ")
    assert capsys.readouterr().out.startswith(f"\n{heading}\n{shown}\n(1 tokens")
