"""Who asks: a browser's session, a script's token, or the command line with the daemon's own."""

from typing import Any, Final, Literal

import msgspec
from litestar.connection import ASGIConnection

from slidepack.daemon.store.access import SCOPES, Scope

__all__ = ["CALLER", "PROXIED", "Caller", "Visitor", "browser_name", "caller_of", "visitor_of"]

CALLER: Final = "caller"
"""Where the connection's state holds it."""
PROXIED: Final = "proxied"
"""Where it holds whether a proxy on this machine passed the request on."""

AnyConnection = ASGIConnection[Any, Any, Any, Any]

_GRANTS: Final[dict[Scope, frozenset[Scope]]] = {
    "read": frozenset({"read"}),
    # Whoever adds a job has to see what becomes of it.
    "jobs": frozenset({"read", "jobs"}),
    "chat": frozenset({"chat"}),
    "admin": frozenset(SCOPES),
}
_BROWSERS: Final = (
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("Vivaldi/", "Vivaldi"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
    ("curl/", "curl"),
)
_SYSTEMS: Final = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who a request comes from."""

    kind: Literal["daemon", "token", "session"]
    scopes: tuple[Scope, ...] = ("admin",)
    session: str = ""
    """The session's token."""
    token_id: int = 0

    def may(self, scope: Scope) -> bool:
        """Return whether the caller may do what needs this scope."""
        return any(scope in _GRANTS[held] for held in self.scopes)

    def __repr__(self) -> str:
        """Leave the session out, so that no log and no traceback can hold it."""
        return f"Caller({self.kind}, {self.scopes}, {self.token_id})"


class Visitor(msgspec.Struct, frozen=True, kw_only=True):
    """From where somebody logs in, and with what."""

    address: str = ""
    proxied: bool = False
    """Whether the address is only that of a proxy on this machine."""
    browser: str = ""
    previous: str = ""
    """The session that the browser has so far; it ends with the login."""


def caller_of(connection: AnyConnection) -> Caller | None:
    """Return who asks, or None on the pages that everybody may see."""
    found = connection.scope["state"][CALLER]
    assert found is None or isinstance(found, Caller)
    return found


def visitor_of(connection: AnyConnection) -> Visitor:
    """Return from where and with what a request comes."""
    client = connection.scope.get("client")
    return Visitor(
        address=client[0] if client else "",
        proxied=bool(connection.scope["state"][PROXIED]),
        browser=browser_name(connection.headers.get("user-agent", "")),
    )


def browser_name(user_agent: str) -> str:
    """Return what a browser calls itself in a few words, as `Firefox on Linux`."""
    browser = next((name for sign, name in _BROWSERS if sign in user_agent), "")
    system = next((name for sign, name in _SYSTEMS if sign in user_agent), "")
    return " on ".join(filter(None, (browser, system))) or "unknown browser"
