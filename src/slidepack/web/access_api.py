"""The API of access: the password, the browsers that are logged in, and the tokens of scripts."""

import asyncio
import time
from typing import Any

import msgspec
from litestar import Request, delete, get, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from slidepack.daemon.store.access import Scope, SessionRecord, TokenRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import SESSION_SECONDS, Access
from slidepack.web.callers import caller_of, visitor_of

__all__ = ["access_routes", "change_password"]

AnyRequest = Request[Any, Any, Any]


class PasswordRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new password, and the one so far."""

    new: str
    old: str = ""
    """Not asked of the command line on this machine, nor where there is none."""

    def __repr__(self) -> str:
        """Leave both out, so that no log and no traceback can hold them."""
        return "PasswordRequest()"


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make."""

    name: str
    scopes: tuple[Scope, ...]
    days: float | None = None
    """Until it ends; None for never."""


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token, this once with itself."""

    token: str
    record: TokenRecord

    def __repr__(self) -> str:
        """Leave the token out."""
        return f"NewToken({self.record!r})"


class AccessState(msgspec.Struct, frozen=True, kw_only=True):
    """How the page can be reached."""

    url: str
    password_set_at: float | None
    """Unix time in seconds; None where there is no password."""
    addresses: tuple[str, ...]
    """Beyond 127.0.0.1, where the daemon listens."""
    elsewhere: tuple[str, ...]
    """What to write into another machine's browser."""
    in_clear: bool
    """Whether passwords and data cross the network unencrypted."""


@get("/access")
async def show_access(access: Access) -> AccessState:
    """Say how the page can be reached."""
    return AccessState(
        url=access.url,
        password_set_at=await asyncio.to_thread(access.passwords.changed_at),
        addresses=access.listening.beyond,
        elsewhere=access.elsewhere,
        in_clear=access.listening.in_clear,
    )


@put("/password", request_max_body_size=8192, status_code=204)
async def set_password(request: AnyRequest, access: Access, data: PasswordRequest) -> None:
    """Set the password; it ends all other sessions."""
    await change_password(request, access, data.new, data.old)


@get("/sessions")
async def list_sessions(access: Access) -> list[SessionRecord]:
    """Return the browsers that are logged in."""
    return await asyncio.to_thread(access.sessions.records, time.time() - SESSION_SECONDS)


@delete("/sessions")
async def end_sessions(request: AnyRequest, access: Access) -> None:
    """End all sessions but the one that asks."""
    caller = caller_of(request)
    await asyncio.to_thread(access.end_sessions, caller.session if caller else "")


@delete("/sessions/{session_id:int}")
async def end_session(access: Access, session_id: FromPath[int]) -> None:
    """End a session; it need not be there."""
    await asyncio.to_thread(access.end_session, session_id)


@get("/tokens")
async def list_tokens(access: Access) -> list[TokenRecord]:
    """Return the tokens, without themselves."""
    return await asyncio.to_thread(access.tokens.records)


@post("/tokens")
async def add_token(access: Access, data: TokenRequest) -> NewToken:
    """Make a token; the answer is the only place where it is ever seen."""
    token, record = await asyncio.to_thread(access.new_token, data.name, data.scopes, data.days)
    return NewToken(token=token, record=record)


@delete("/tokens/{token_id:int}")
async def remove_token(access: Access, token_id: FromPath[int]) -> None:
    """End a token at once."""
    await asyncio.to_thread(access.remove_token, token_id)


def access_routes() -> list[HTTPRouteHandler]:
    """Return the routes of access, below the API's root."""
    return [
        show_access,
        set_password,
        list_sessions,
        end_sessions,
        end_session,
        list_tokens,
        add_token,
        remove_token,
    ]


async def change_password(request: AnyRequest, access: Access, new: str, old: str) -> None:
    """Set the password for whoever asks: who does not sit at the machine must know the old one.

    Raises:
        SlidepackError: DAEMON-PASSWORD-INVALID, DAEMON-ACCESS, DAEMON-TOO-MANY-TRIES.
    """
    caller = caller_of(request)
    assert caller is not None, "no public route"
    if caller.kind != "daemon":
        if await asyncio.to_thread(access.passwords.changed_at) is not None:
            await access.check_password(old, visitor_of(request))
        if old == new:
            raise SlidepackError(
                "DAEMON-PASSWORD-INVALID",
                "This password is not taken.",
                why="it is the old one",
                fix="Type a new one.",
            )
    await asyncio.to_thread(access.set_password, new, caller.session)
