"""Addresses of pages' parts and buttons: those that there are, and those of what is gone."""

from typing import Any, Final

from litestar import Response
from litestar.plugins.htmx import ClientRedirect

from slidepack.engine.contract.errors import SlidepackError

__all__ = ["leave", "require_known"]

_GONE: Final = ("RUN-NOT-FOUND", "MODEL-NOT-FOUND")


def leave(error: SlidepackError, to: str) -> Response[Any]:
    """Send a page to another one where what it shows has been deleted; raise any other error.

    A page that is open, in another tab or while it is left, asks for its parts until it is gone.

    Args:
        error: why a part cannot be shown.
        to: path of the list that it was in.

    Raises:
        SlidepackError: it is still there.
    """
    if error.report.code not in _GONE:
        raise error
    return ClientRedirect(to)


def require_known(name: str, known: tuple[str, ...]) -> None:
    """Refuse a part or a button that a page does not have.

    Raises:
        SlidepackError: DAEMON-REQUEST-INVALID.
    """
    if name not in known:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "There is no such part of the page.",
            why=f"known: {', '.join(known)}",
        )
