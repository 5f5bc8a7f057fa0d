"""The pages' scripts, styles and pictures: asked for each time, sent only where they changed."""

from pathlib import Path
from typing import Final

from litestar import Router
from litestar.datastructures import CacheControlHeader
from litestar.static_files import create_static_files_router
from litestar.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["static_router"]

_KEPT: Final = (b"etag", b"cache-control", b"last-modified")
"""Headers that an answer without a body has, too."""


def static_router(folder: Path) -> Router:
    """Return the router of a folder of files.

    Without `no-cache`, a browser would use the old scripts with the new pages for days after an
    update.
    """
    return create_static_files_router(
        path="/static",
        directories=[folder],
        include_in_schema=False,
        cache_control=CacheControlHeader(no_cache=True),
        middleware=[_only_what_changed],
    )


def _only_what_changed(app: ASGIApp) -> ASGIApp:
    """Return an application that answers 304 where the browser has the file as it is."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        known = _known(scope)
        unchanged = False

        async def shortened(message: Message) -> None:
            nonlocal unchanged
            if message["type"] == "http.response.start":
                headers = dict(message["headers"])
                unchanged = message["status"] == 200 and headers.get(b"etag") in known
                if unchanged:
                    kept = [(name, headers[name]) for name in _KEPT if name in headers]
                    message = {"type": "http.response.start", "status": 304, "headers": kept}
            elif message["type"] == "http.response.body" and unchanged:
                if message["more_body"]:
                    return
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        await app(scope, receive, shortened)

    return answer


def _known(scope: Scope) -> frozenset[bytes]:
    """Return the tags of the versions that the browser has."""
    texts = [value for name, value in scope["headers"] if name == b"if-none-match"]
    return frozenset(tag.strip() for text in texts for tag in text.split(b","))
