"""The page on which somebody logs in, by a link or by the password, and the way out."""

import asyncio
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
from litestar import Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.enums import RequestEncodingType
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, FromQuery
from litestar.plugins.htmx import ClientRedirect
from litestar.response import Redirect, Template

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.web.access import LOGIN_PATH, SESSION_SECONDS, Access
from slidepack.web.callers import Visitor, caller_of, visitor_of
from slidepack.web.errors import retry_header
from slidepack.web.login_links import refuse_embedded

__all__ = ["leave", "local_path", "login_context", "login_pages"]

AnyRequest = Request[Any, Any, Any]
Form = Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)]

_MOST_BYTES: Final = 8192
_LONGEST_NEXT: Final = 500


@get(LOGIN_PATH)
async def login(
    request: AnyRequest,
    access: Access,
    token: FromQuery[str] = "",
    to: FromQuery[str] = "/",
) -> Redirect | Template:
    """Turn a one-time link into a session cookie, or ask for the password."""
    if token:
        refuse_embedded(request.headers)
        visitor = _visitor(request, access)
        session = await asyncio.to_thread(access.redeem, token, visitor)
        return _entered(request, access, session, "/")
    if access.session_of(dict(request.scope["headers"])):
        return Redirect(local_path(to), status_code=303)
    return _form(access, local_path(to), None, 200)


# Small: the only request that anybody may send a body with.
@post(LOGIN_PATH, request_max_body_size=_MOST_BYTES, status_code=200)
async def login_by_password(request: AnyRequest, access: Access, data: Form) -> Redirect | Template:
    """Turn the password into a session cookie and go to where the user was going."""
    to = local_path(data.get("to", "/"))
    try:
        session = await access.log_in(data.get("password", ""), _visitor(request, access))
    except SlidepackError as error:
        return _form(access, to, error, error.http_status)
    return _entered(request, access, session, to)


@post("/logout", status_code=200)
async def logout(request: AnyRequest, access: Access) -> Response[Any]:
    """End the session that asks."""
    caller = caller_of(request)
    if caller is not None and caller.kind == "session":
        session = await asyncio.to_thread(access.sessions.id_of, caller.session)
        if session is not None:
            await asyncio.to_thread(access.end_session, session)
    return leave(access)


def login_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [login, login_by_password, logout]


def leave(access: Access) -> Response[Any]:
    """Return the answer that takes a browser without a session to the login."""
    answer = ClientRedirect(LOGIN_PATH)
    for name in (access.cookie_name, access.secure_cookie_name):
        answer.delete_cookie(name)
    return answer


def login_context(access: Access, to: str, error: ErrorReport | None) -> dict[str, Any]:
    """Return what `login.html` shows.

    Args:
        access: of the daemon.
        to: where to go after the login; empty for the first page.
        error: why the user is here, or None.
    """
    has_password = access.passwords.changed_at() is not None
    return {"error": error, "has_password": has_password, "to": local_path(to)}


def local_path(wanted: str) -> str:
    """Return the path if it is one of our own pages, else the first page: a login must not be the
    beginning of a way to somebody else's."""
    parts = urlsplit(wanted) if wanted.isprintable() and wanted.isascii() else None
    if (
        parts is None
        or len(wanted) > _LONGEST_NEXT
        or parts.scheme
        or parts.netloc
        or not wanted.startswith("/")
        or "\\" in wanted
        # Not of the parts: a browser takes three strokes for two, and the parser does not.
        or "//" in wanted.partition("?")[0]
        or parts.path == LOGIN_PATH
    ):
        return "/"
    return wanted


def _entered(request: AnyRequest, access: Access, session: str, to: str) -> Redirect:
    secure = request.scope["scheme"] == "https"
    cookie = Cookie(
        key=access.secure_cookie_name if secure else access.cookie_name,
        value=session,
        httponly=True,
        secure=secure,
        samesite="strict",
        max_age=int(SESSION_SECONDS),
    )
    return Redirect(to, status_code=303, cookies=[cookie])


def _form(access: Access, to: str, error: SlidepackError | None, status: int) -> Template:
    report = error.report if error else None
    return Template(
        "login.html",
        context=login_context(access, to, report),
        status_code=status,
        headers=retry_header(error),
    )


def _visitor(request: AnyRequest, access: Access) -> Visitor:
    # Whoever logs in anew is someone new: a session that was there before ends with it.
    previous = access.session_of(dict(request.scope["headers"]))
    return msgspec.structs.replace(visitor_of(request), previous=previous)
