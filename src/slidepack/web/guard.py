"""The outermost layer of the application: checks before it, headers after it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.web.access import Access
from slidepack.web.callers import CALLER, PROXIED, Caller
from slidepack.web.openai_errors import OPENAI_PREFIX, error_body
from slidepack.web.proxies import is_proxied

__all__ = ["Guard"]

logger = logging.getLogger(__name__)

_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not `no-referrer`: with it a browser calls the origin of our own login form null.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

_LOOK_SECONDS: Final = 60.0
"""How often an open stream asks whether its session or token has expired."""

RefusalPage = Callable[[ErrorReport, str], str]


class Guard:
    """Applies `Access.check` to every request, also to unknown paths, and the security headers to
    every response, also to refusals. What is not HTTP is not answered."""

    def __init__(self, app: ASGIApp, access: Access, refusal_page: RefusalPage) -> None:
        """Wrap an application.

        Args:
            app: what answers the requests that pass.
            access: the checks.
            refusal_page: renders the HTML of a refusal; its second argument is the path that was
                asked for, empty where a login could not go back to it.
        """
        self._app = app
        self._access = access
        self._refusal_page = refusal_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != ScopeType.HTTP:
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        answer = _Answer(send)
        try:
            caller = self._access.check(scope)
        except SlidepackError as error:
            await self._refuse(scope, error, answer.send)
            return
        proxied = is_proxied(scope, self._access.listening)
        scope["state"] = {**(scope.get("state") or {}), CALLER: caller, PROXIED: proxied}
        if caller is None:
            await self._app(scope, receive, answer.send)
            return
        await self._note(caller)
        await self._app(scope, receive, _Watched(answer, self._access, caller).send)

    async def _note(self, caller: Caller) -> None:
        if not self._access.is_worth_noting(caller):
            return
        try:
            await asyncio.to_thread(self._access.note, caller)
        except SlidepackError as error:
            # A full disk keeps nobody from the page that tells of it.
            logger.warning("When somebody was last here is not noted: %s", error)

    async def _refuse(self, scope: HTTPScope, error: SlidepackError, send: Send) -> None:
        path = scope["path"]
        if path.startswith(("/api/", "/schema")):
            body, media_type = msgspec.json.encode(error.report), b"application/json"
        elif path.startswith(OPENAI_PREFIX):
            shaped = error_body(error.report, error.http_status)
            body, media_type = msgspec.json.encode(shaped), b"application/json"
        else:
            body = self._refusal_page(error.report, _way_back(scope)).encode()
            media_type = b"text/html; charset=utf-8"
        await send(
            {
                "type": "http.response.start",
                "status": error.http_status,
                "headers": [
                    (b"content-type", media_type),
                    (b"content-length", str(len(body)).encode()),
                ],
            }
        )
        await send({"type": "http.response.body", "body": body, "more_body": False})


class _Answer:
    """Sends a response with the security headers."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, message: Message) -> None:
        """Send a part of it."""
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_HEADERS]
        await self._send(message)


class _Watched:
    """Cuts a stream off whose session or token ends or expires while it is open.

    It looks when something is sent; streams that have nothing to say send that they live.
    """

    def __init__(self, answer: _Answer, access: Access, caller: Caller) -> None:
        self._answer = answer
        self._access = access
        self._caller = caller
        self._endings = access.endings
        self._looked = access.clock()
        self._streams = False
        self._cut = False

    async def send(self, message: Message) -> None:
        """Send a part of it, or nothing any more."""
        if self._cut:
            return
        if message["type"] == "http.response.start":
            # Only these have no end of their own.
            kinds = [value for name, value in message["headers"] if name == b"content-type"]
            self._streams = any(kind.startswith(b"text/event-stream") for kind in kinds)
        elif self._streams and self._is_due() and not await self._is_in():
            self._cut = True
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._answer.send(message)

    async def _is_in(self) -> bool:
        return await asyncio.to_thread(self._access.is_in, self._caller)

    def _is_due(self) -> bool:
        """Return whether to look again: somebody was shut out, or a while has passed, for what
        expires is counted nowhere."""
        endings, now = self._access.endings, self._access.clock()
        if endings == self._endings and now - self._looked < _LOOK_SECONDS:
            return False
        self._endings, self._looked = endings, now
        return True


def _way_back(scope: HTTPScope) -> str:
    """Return the path to go back to after a login, for a page that was asked for as such."""
    if scope["method"] != "GET" or any(name == b"hx-request" for name, _ in scope["headers"]):
        return ""
    query = scope["query_string"].decode("latin-1")
    return f"{scope['path']}?{query}" if query else scope["path"]
