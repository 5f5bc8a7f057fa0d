"""Who may ask for what: hosts, origins, logins, bearer tokens, CSRF and response headers.

The daemon listens on 127.0.0.1, which every web site in the user's browser can reach too. So each
request needs a Host that is ours (against DNS rebinding), an Origin that is ours where there is
one, and either the bearer token of the command line or the session cookie of a login link; an
unsafe request by cookie also needs the session's CSRF token in a header.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from slidepack.daemon.store.catalogue import Sessions
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.web.openai_errors import OPENAI_PREFIX, error_body

SESSION_SECONDS: Final = 30 * 24 * 3600.0
_LINK_SECONDS: Final = 24 * 3600.0
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PUBLIC_PREFIXES: Final = ("/static/", "/login")
_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

Principal = Literal["token", "session", "nobody"]


class Access:
    """The secrets of one daemon process and the checks on them."""

    def __init__(self, sessions: Sessions, port: int) -> None:
        """Make fresh secrets.

        Args:
            sessions: where browser sessions are kept.
            port: the port the daemon listens on; part of every allowed host.
        """
        self._sessions = sessions
        self._links: dict[str, float] = {}
        self._hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self.bearer_token = secrets.token_urlsafe(32)
        self.cookie_name = f"slidepack_{port}"
        self.url = f"http://127.0.0.1:{port}"

    def new_link(self) -> str:
        """Return an address that logs one browser in, once, within a day."""
        token = secrets.token_urlsafe(24)
        self._links[_digest(token)] = time.time() + _LINK_SECONDS
        return f"{self.url}/login?token={token}"

    def redeem(self, token: str) -> str:
        """Turn a link's token into a session and return the cookie's value.

        Raises:
            SlidepackError: DAEMON-ACCESS where the link was used, is old, or never was.
        """
        expires = self._links.pop(_digest(token), 0.0)
        now = time.time()
        if expires < now:
            raise SlidepackError(
                "DAEMON-ACCESS",
                "This link does not open the page any more.",
                why="each link works once, for a day",
                fix="Get a new one with `slidepack open`.",
            )
        session = secrets.token_urlsafe(32)
        self._sessions.expire(now - SESSION_SECONDS)
        self._sessions.add(session, now)
        return session

    def csrf_token(self, session: str) -> str:
        """Return the token that unsafe requests of a session must carry; bound to the session."""
        return hmac.new(session.encode(), b"slidepack-csrf", hashlib.sha256).hexdigest()

    def session_of(self, headers: dict[bytes, bytes]) -> str:
        """Return the request's valid session, or an empty string."""
        # By hand: the standard parser drops every cookie after one that it cannot read, and
        # cookies of 127.0.0.1 are shared by all programs that serve there.
        pairs = headers.get(b"cookie", b"").decode("latin-1").split(";")
        named = dict(pair.strip().partition("=")[::2] for pair in pairs)
        session = named.get(self.cookie_name, "")
        oldest = time.time() - SESSION_SECONDS
        return session if session and self._sessions.known(session, oldest) else ""

    def check(self, scope: HTTPScope) -> None:
        """Let the request pass or refuse it.

        Raises:
            SlidepackError: DAEMON-FORBIDDEN, DAEMON-ACCESS or DAEMON-REQUEST-INVALID.
        """
        if "\0" in scope["path"]:
            raise SlidepackError(
                "DAEMON-REQUEST-INVALID",
                "The request cannot be answered.",
                why="its path holds a NUL",
                fix="See /schema/openapi.json for what there is.",
            )
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if host not in self._hosts:
            raise _forbidden("The request names a host that is not this daemon.", host)
        origin = headers.get(b"origin", b"").decode("latin-1")
        if origin and origin not in {f"http://{allowed}" for allowed in self._hosts}:
            raise _forbidden("The request comes from another site.", origin)
        if scope["path"].startswith(_PUBLIC_PREFIXES):
            return
        session = self.session_of(headers)
        principal = self._principal(headers, session)
        if principal == "nobody":
            raise SlidepackError(
                "DAEMON-ACCESS",
                "This page needs a login.",
                why="the request carries neither a session nor a token",
                fix="Open the link that `slidepack serve` printed, or get one: `slidepack open`.",
            )
        if principal == "session" and scope["method"] not in _SAFE_METHODS:
            sent = headers.get(b"x-csrf-token", b"").decode("latin-1")
            if not hmac.compare_digest(sent.encode(), self.csrf_token(session).encode()):
                raise _forbidden("The request lacks this session's CSRF token.", "x-csrf-token")

    def _principal(self, headers: dict[bytes, bytes], session: str) -> Principal:
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.casefold() == "bearer":
            same = hmac.compare_digest(token.strip().encode(), self.bearer_token.encode())
            return "token" if same else "nobody"
        return "session" if session else "nobody"


class Guard:
    """The outermost layer: applies `Access.check` to every request, also to unknown paths, and the
    security headers to every response, also to refusals."""

    def __init__(
        self, app: ASGIApp, access: Access, refusal_page: Callable[[ErrorReport], str]
    ) -> None:
        """Wrap an application.

        Args:
            app: what answers the requests that pass.
            access: the checks.
            refusal_page: renders the HTML of a refusal.
        """
        self._app = app
        self._access = access
        self._refusal_page = refusal_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        try:
            self._access.check(scope)
        except SlidepackError as error:
            await self._refuse(scope["path"], error, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    async def _refuse(self, path: str, error: SlidepackError, send: Send) -> None:
        if path.startswith(("/api/", "/schema")):
            body, media_type = msgspec.json.encode(error.report), b"application/json"
        elif path.startswith(OPENAI_PREFIX):
            shaped = error_body(error.report, error.http_status)
            body, media_type = msgspec.json.encode(shaped), b"application/json"
        else:
            body = self._refusal_page(error.report).encode()
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


def _forbidden(what: str, why: str) -> SlidepackError:
    return SlidepackError(
        "DAEMON-FORBIDDEN",
        what,
        why=why[:200] or "none was sent",
        fix="Open the page at the address that `slidepack serve` printed.",
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
