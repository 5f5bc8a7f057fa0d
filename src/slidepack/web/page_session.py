"""What a page needs of the session that asks for it."""

from typing import Any

from litestar import Request

from slidepack.web.access import Access

__all__ = ["csrf_of"]


def csrf_of(request: Request[Any, Any, Any], access: Access) -> str:
    """Return the session's token, or an empty string for a request by bearer token."""
    session = access.session_of(dict(request.scope["headers"]))
    return access.csrf_token(session) if session else ""
