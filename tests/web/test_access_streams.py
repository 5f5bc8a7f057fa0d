"""Open streams end with what let them in, also where it expires: by a clock that the tests turn."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from litestar.types import Message, Receive, Scope, Send
from support.stores import open_stores

from slidepack.daemon.passwords import Passwords
from slidepack.daemon.store.access import Sessions, Tokens
from slidepack.daemon.store.documents import Documents
from slidepack.web.access import SESSION_SECONDS, Access
from slidepack.web.callers import Caller
from slidepack.web.guard import Guard

_DAY = 86_400.0
_MINUTE = 60.0


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=1_000_000.0)


@pytest.fixture
def access(tmp_path: Path, clock: SimpleNamespace) -> Access:
    database = open_stores(tmp_path).database
    return Access(
        Sessions(database),
        Tokens(database),
        Passwords(Documents(database)),
        1234,
        clock=lambda: float(clock.now),
    )


def _stream(
    access: Access,
    clock: SimpleNamespace,
    header: tuple[str, str],
    waits: list[float],
    kind: str = "text/event-stream",
) -> list[Message]:
    """Return what goes out of a stream that sends a piece after each wait."""

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send(_start(kind))
        for seconds in waits:
            clock.now += seconds
            await send({"type": "http.response.body", "body": b"piece", "more_body": True})

    scope: Any = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": "/api/v1/stream",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:1234"), tuple(part.encode() for part in header)],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 1234),
    }
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a stream reads nothing")

    guard = Guard(app, access, lambda report, _path: report.code)
    asyncio.run(guard(scope, receive, send))
    assert sent[0]["type"] == "http.response.start"
    assert sent[0]["status"] == 200
    return sent[1:]


def _start(kind: str) -> Message:
    headers = [(b"content-type", kind.encode())]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _bodies(messages: list[Message]) -> list[tuple[bytes, bool]]:
    return [
        (message["body"], message["more_body"])
        for message in messages
        if message["type"] == "http.response.body"
    ]


_PIECE = (b"piece", True)
_END = (b"", False)


def test_a_stream_ends_when_its_token_expires(access: Access, clock: SimpleNamespace) -> None:
    token, record = access.new_token("short", ("read",), days=1)
    assert access.is_in(Caller(kind="token", token_id=record.id))
    bearer = ("authorization", f"Bearer {token}")
    waits = [1.0, _DAY - 10, 1.0, _MINUTE, 1.0, 1.0]
    assert _bodies(_stream(access, clock, bearer, waits)) == [_PIECE] * 3 + [_END]
    assert not access.is_in(Caller(kind="token", token_id=record.id))


def test_a_stream_ends_when_its_session_is_too_old(access: Access, clock: SimpleNamespace) -> None:
    cookie = ("cookie", f"{access.cookie_name}={access.redeem(_token_of(access))}")
    waits = [1.0, SESSION_SECONDS - 10, 1.0, _MINUTE, 1.0]
    assert _bodies(_stream(access, clock, cookie, waits)) == [_PIECE] * 3 + [_END]


def test_what_does_not_expire_and_what_has_an_end_of_its_own_go_on(
    access: Access, clock: SimpleNamespace
) -> None:
    daemon = ("authorization", f"Bearer {access.bearer_token}")
    assert _bodies(_stream(access, clock, daemon, [400 * _DAY] * 3)) == [_PIECE] * 3
    token, _ = access.new_token("short", ("read",), days=1)
    bearer = ("authorization", f"Bearer {token}")
    file = _stream(access, clock, bearer, [2 * _DAY, 1.0], kind="application/x-tar")
    assert _bodies(file) == [_PIECE] * 2, "a download that has begun is finished"


def _token_of(access: Access) -> str:
    return access.new_link().partition("token=")[2]
