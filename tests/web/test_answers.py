"""Answers come from another thread to one coroutine, and whoever stops to read them ends them."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from slidepack.daemon.chat.contract import Answer, AskFailed, AskRequest
from slidepack.daemon.chat.known import Tell
from slidepack.engine.chat.events import Done, Token
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.web.answers import begin_ask

_T = TypeVar("_T")
_ERROR = ErrorReport(code="CHAT-CRASHED", what="It died.", why="", fix="")


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in a thread of its own: in the main one a browser's loop may be open."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


class _Chats:
    """Answers at once, from a thread of its own."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = answers
        self.stopped: list[tuple[str, str]] = []

    def ask(self, _session: str, request: AskRequest, tell: Tell) -> str:
        if "nobody" in request.voices:
            raise SlidepackError("CHAT-VOICE-UNKNOWN", "There is no such voice.")

        def say() -> None:
            for answer in self.answers:
                tell(answer)

        speaker = threading.Thread(target=say)
        speaker.start()
        speaker.join()
        return "ask"

    def stop_ask(self, session: str, ask_id: str) -> None:
        self.stopped.append((session, ask_id))


def _service(chats: _Chats) -> Any:
    return SimpleNamespace(chats=chats, stopping=threading.Event())


def _done(voice: str) -> Done:
    return Done(
        id="ask",
        voice=voice,
        finish_reason="stop",
        prompt_tokens=1,
        cached_tokens=0,
        new_tokens=1,
        tokens_per_second=1.0,
        first_token_seconds=0.1,
    )


def _piece(voice: str) -> Token:
    return Token(id="ask", voice=voice, text="x")


async def _read(
    service: Any, most: int, *voices: str, into: list[Answer | None] | None = None
) -> list[Answer | None]:
    running = await begin_ask(service, "session", AskRequest(voices=voices, prompt="x"))
    found = [] if into is None else into
    answers = running.answers()
    while len(found) < most:
        answer = await anext(answers, "end")
        if isinstance(answer, str):
            break
        found.append(answer)
    await answers.aclose()  # type: ignore[attr-defined]
    return found


def test_the_last_voice_ends_it_and_nothing_is_left_to_stop() -> None:
    chats = _Chats(_piece("a"), _done("a"), _piece("b"), _done("b"), _piece("never"))
    assert _run(_read(_service(chats), 9, "a", "b")) == list(chats.answers[:4])
    assert chats.stopped == []


def test_a_failure_ends_the_voices_that_it_names() -> None:
    chats = _Chats(AskFailed(voices=("a",), error=_ERROR), _done("b"), _piece("never"))
    assert _run(_read(_service(chats), 9, "a", "b")) == list(chats.answers[:2])
    assert chats.stopped == []


def test_who_stops_to_read_ends_the_answers() -> None:
    chats = _Chats(_piece("a"), _piece("a"), _done("a"))
    assert _run(_read(_service(chats), 1, "a")) == [_piece("a")]
    assert chats.stopped == [("session", "ask")]


def test_a_reader_that_is_cancelled_ends_the_answers() -> None:
    chats = _Chats(_piece("a"))

    async def cancelled() -> None:
        found: list[Answer | None] = []
        task = asyncio.create_task(_read(_service(chats), 9, "a", into=found))
        while not found:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})

    _run(cancelled())
    assert chats.stopped == [("session", "ask")]


def test_the_end_of_the_daemon_is_the_end_of_the_answers() -> None:
    chats = _Chats(_piece("a"))
    service = _service(chats)
    service.stopping.set()
    _, failed = _run(_read(service, 9, "a", "b"))
    assert isinstance(failed, AskFailed)
    assert (failed.voices, failed.error.code) == (("a", "b"), "CHAT-ENDED")


def test_a_refusal_comes_before_the_first_answer() -> None:
    with pytest.raises(SlidepackError, match="CHAT-VOICE-UNKNOWN"):
        _run(_read(_service(_Chats()), 1, "nobody"))
