"""Who may ask for what: hosts, origins, logins, tokens and CSRF.

The daemon listens on 127.0.0.1, which every web site in the user's browser can reach too, and
where the user wants it on the network. So each request needs a Host that is ours (against DNS
rebinding), an Origin that is ours where there is one, and either a token or the session cookie of
a login; an unsafe request by cookie also needs the session's CSRF token in a header.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import parse_qsl

from litestar.types import HTTPScope

from slidepack.daemon.listening import HOME_ADDRESS, Listening
from slidepack.daemon.passwords import Passwords
from slidepack.daemon.store.access import Scope, Sessions, TokenRecord, Tokens
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.callers import Caller, Visitor
from slidepack.web.login_limits import LoginLimits, TooManyTries
from slidepack.web.login_links import LoginLinks
from slidepack.web.proxies import has_further_name

__all__ = ["LOGIN_PATH", "SESSION_SECONDS", "Access", "is_public"]

SESSION_SECONDS: Final = 30 * 24 * 3600.0
LOGIN_PATH: Final = "/login"
_SEEN_SECONDS: Final = 60.0
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_MOST_WAITING: Final = 8
"""Passwords that wait to be checked: each check takes memory, so it is one at a time."""
_ODD_PATH: Final = re.compile(r"\\|//|(?:^|/)\.{1,2}(?:/|$)|[\x00-\x1f\x7f]")
_OURS: Final = frozenset({"same-origin", "none"})
TOKEN_PREFIX: Final = "slp_"
"""So that scanners of leaked secrets, and people, know one."""


class Access:
    """The secrets of one daemon process and the checks on them."""

    def __init__(
        self,
        sessions: Sessions,
        tokens: Tokens,
        passwords: Passwords,
        port: int,
        *,
        listening: Listening | None = None,
        secure_port: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make fresh secrets.

        Args:
            sessions: where browser sessions are kept.
            tokens: where the tokens of scripts are kept.
            passwords: the page's password.
            port: where the daemon speaks HTTP; part of every allowed host.
            listening: its addresses and names; None for 127.0.0.1 alone.
            secure_port: where it speaks HTTPS.
            clock: unix time in seconds.
        """
        self.sessions = sessions
        self.tokens = tokens
        self.passwords = passwords
        self.port = port
        self.secure_port = secure_port
        self.listening = listening or Listening(plain=(HOME_ADDRESS,))
        self.clock = clock
        self._links = LoginLinks(clock)
        self._password_limits = LoginLimits()
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._noted: dict[str, float] = {}
        self.endings = 0
        """How often somebody was shut out; open streams then ask whether it was them."""
        self.bearer_token = secrets.token_urlsafe(32)
        self.cookie_name = f"slidepack_{port}"
        self.secure_cookie_name = f"__Host-slidepack_{secure_port}"
        self.url = f"http://{HOME_ADDRESS}:{port}"

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The page's addresses for other machines, the likeliest first."""
        names = self.listening.reachable_names()
        secure = bool(self.listening.secure)
        scheme, port = ("https", self.secure_port) if secure else ("http", self.port)
        return tuple(f"{scheme}://{name}:{port}" for name in names)

    def new_link(self) -> str:
        """Return an address that logs one browser in, once, within a day."""
        return f"{self.url}{LOGIN_PATH}?token={self._links.new()}"

    def redeem(self, token: str, visitor: Visitor | None = None) -> str:
        """Turn a link's token into a session and return the cookie's value.

        Raises:
            SlidepackError: DAEMON-ACCESS where the link was used, is old, or never was.
        """
        self._links.use(token)
        return self._new_session(visitor or Visitor())

    async def log_in(self, password: str, visitor: Visitor) -> str:
        """Turn the password into a session and return the cookie's value.

        Raises:
            SlidepackError: DAEMON-ACCESS, DAEMON-TOO-MANY-TRIES.
        """
        await self.check_password(password, visitor)
        return await asyncio.to_thread(self._new_session, visitor)

    async def check_password(self, password: str, visitor: Visitor) -> None:
        """Refuse a wrong password.

        Raises:
            SlidepackError: DAEMON-ACCESS, DAEMON-TOO-MANY-TRIES.
        """
        self._password_limits.begin(visitor.address, proxied=visitor.proxied)
        if self._waiting >= _MOST_WAITING:
            raise TooManyTries(1)
        self._waiting += 1
        try:
            async with self._turn:
                right = await asyncio.to_thread(self.passwords.matches, password)
        finally:
            self._waiting -= 1
        if not right:
            raise SlidepackError(
                "DAEMON-ACCESS",
                "This is not the password.",
                why="what was typed is another one",
                fix="Try again, or get a link on the machine itself: `slidepack open`.",
            )
        self._password_limits.succeeded(visitor.address, proxied=visitor.proxied)

    def set_password(self, password: str, keep: str = "") -> None:
        """Set the password and end all sessions but one.

        Raises:
            SlidepackError: DAEMON-PASSWORD-INVALID.
        """
        self.passwords.set(password, self.clock())
        self.end_sessions(keep)

    def end_session(self, session_id: int) -> None:
        """End a session; it need not be there."""
        self.sessions.end(session_id)
        self.endings += 1

    def end_sessions(self, but: str = "") -> None:
        """End all sessions, or all but the one of a cookie."""
        self.sessions.end_all(but)
        self.endings += 1

    def new_token(
        self, name: str, scopes: tuple[Scope, ...], days: float | None
    ) -> tuple[str, TokenRecord]:
        """Make a token for a script; it is shown once and never again.

        Args:
            name: what to call it.
            scopes: what it may do.
            days: until it ends; None for never.

        Raises:
            SlidepackError: DAEMON-REQUEST-INVALID.
        """
        token = TOKEN_PREFIX + secrets.token_urlsafe(32)
        now = self.clock()
        until = None if days is None else now + days * 86_400
        return token, self.tokens.add(token, name, scopes, now, until)

    def remove_token(self, token_id: int) -> None:
        """End a token.

        Raises:
            SlidepackError: DAEMON-TOKEN-NOT-FOUND.
        """
        self.tokens.remove(token_id)
        self.endings += 1

    def csrf_token(self, session: str) -> str:
        """Return the token that unsafe requests of a session must carry; bound to the session."""
        return hmac.new(session.encode(), b"slidepack-csrf", hashlib.sha256).hexdigest()

    def session_of(self, headers: dict[bytes, bytes]) -> str:
        """Return the request's valid session, or an empty string."""
        # By hand: the standard parser drops every cookie after one that it cannot read, and
        # cookies of 127.0.0.1 are shared by all programs that serve there.
        pairs = headers.get(b"cookie", b"").decode("latin-1").split(";")
        named = dict(pair.strip().partition("=")[::2] for pair in pairs)
        for name in (self.secure_cookie_name, self.cookie_name):
            session = named.get(name, "")
            if session and self.sessions.known(session, self.clock() - SESSION_SECONDS):
                return session
        return ""

    def check(self, scope: HTTPScope) -> Caller | None:
        """Let the request pass or refuse it; return who asks, None where everybody may.

        Raises:
            SlidepackError: DAEMON-FORBIDDEN, DAEMON-ACCESS or DAEMON-REQUEST-INVALID.
        """
        if odd := _ODD_PATH.search(scope["path"]):
            raise SlidepackError(
                "DAEMON-REQUEST-INVALID",
                "The request cannot be answered.",
                why=f"its path holds {odd.group()!r}",
                fix="See /schema/openapi.json for what there is.",
            )
        self._check_peer(scope)
        self._check_host(scope)
        if is_public(scope["path"]):
            return None
        headers = dict(scope["headers"])
        caller = self._caller(headers)
        if caller is None:
            raise SlidepackError(
                "DAEMON-ACCESS",
                "This page needs a login.",
                why="the request carries neither a session nor a token",
                fix="Open the link that `slidepack serve` printed, or get one: `slidepack open`.",
            )
        if caller.kind == "session" and scope["method"] not in _SAFE_METHODS:
            sent = headers.get(b"x-csrf-token", b"").decode("latin-1") or _of_form(scope)
            if not hmac.compare_digest(sent.encode(), self.csrf_token(caller.session).encode()):
                raise _forbidden("The request lacks this session's CSRF token.", "x-csrf-token")
        return caller

    def is_in(self, caller: Caller) -> bool:
        """Return whether somebody who was let in still is: not ended since, and not expired."""
        now = self.clock()
        if caller.kind == "session":
            return self.sessions.known(caller.session, now - SESSION_SECONDS)
        return caller.kind == "daemon" or self.tokens.known(caller.token_id, now)

    def is_worth_noting(self, caller: Caller) -> bool:
        """Return whether `note` has anything to do: once a minute for each caller."""
        key = _key(caller)
        return bool(key) and self.clock() - self._noted.get(key, 0.0) >= _SEEN_SECONDS

    def note(self, caller: Caller) -> None:
        """Record that a session or a token was used.

        Raises:
            SlidepackError: DISK-FULL or DISK-UNWRITABLE.
        """
        now = self.clock()
        self._noted = {k: at for k, at in self._noted.items() if now - at < _SEEN_SECONDS}
        self._noted[_key(caller)] = now
        if caller.kind == "session":
            self.sessions.seen(caller.session, now)
        else:
            self.tokens.used(caller.token_id, now)

    def _new_session(self, visitor: Visitor) -> str:
        session = secrets.token_urlsafe(32)
        now = self.clock()
        self.sessions.expire(now - SESSION_SECONDS)
        previous = self.sessions.id_of(visitor.previous) if visitor.previous else None
        if previous is not None:
            self.end_session(previous)
        self.sessions.add(session, now, visitor.browser, visitor.address)
        return session

    def _check_peer(self, scope: HTTPScope) -> None:
        client = scope.get("client")
        if self.listening.lan_only and client and _is_public_address(client[0]):
            raise _forbidden("The page is for this network only.", client[0])

    def _check_host(self, scope: HTTPScope) -> None:
        host = _only(scope["headers"], b"host")
        tls = scope["scheme"] == "https"
        server = scope.get("server")
        if host is None or not self.listening.allows(host, server, tls=tls):
            raise _forbidden("The request names a host that is not this daemon.", host or "")
        # A proxy of the user's may speak HTTPS where we do not.
        through = has_further_name(host, self.listening)
        schemes = ("http", "https") if through else (scope["scheme"],)
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        for origin in (value.decode("latin-1") for value in origins):
            if origin not in {f"{scheme}://{host}" for scheme in schemes}:
                raise _forbidden("The request comes from another site.", origin)
        site = dict(scope["headers"]).get(b"sec-fetch-site", b"none").decode("latin-1")
        if scope["method"] not in _SAFE_METHODS and site not in _OURS:
            raise _forbidden("The request comes from another site.", site)

    def _caller(self, headers: dict[bytes, bytes]) -> Caller | None:
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.casefold() == "bearer":
            return self._caller_by_token(token.strip())
        session = self.session_of(headers)
        return Caller(kind="session", session=session) if session else None

    def _caller_by_token(self, token: str) -> Caller | None:
        if hmac.compare_digest(token.encode(), self.bearer_token.encode()):
            return Caller(kind="daemon")
        if not token.startswith(TOKEN_PREFIX):
            return None
        found = self.tokens.find(token, self.clock())
        if found is None:
            return None
        return Caller(kind="token", scopes=found.scopes, token_id=found.id)


def is_public(path: str) -> bool:
    """Return whether a path is answered without a login."""
    return path == LOGIN_PATH or path.startswith("/static/")


def _only(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """Return the value of a header that comes once; None where it is missing or comes twice."""
    found = [value for key, value in headers if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else None


def _is_public_address(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_global
    except ValueError:
        return True


def _key(caller: Caller) -> str:
    if caller.kind == "session":
        return _digest(caller.session)
    return str(caller.token_id) if caller.kind == "token" else ""


def _of_form(scope: HTTPScope) -> str:
    """Return the token in the address that a form of ours was sent to, where no script runs."""
    return dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("csrf", "")


def _forbidden(what: str, why: str) -> SlidepackError:
    return SlidepackError(
        "DAEMON-FORBIDDEN",
        what,
        why=why[:200] or "none was sent",
        fix="Open the page at the address that `slidepack serve` printed.",
    )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
