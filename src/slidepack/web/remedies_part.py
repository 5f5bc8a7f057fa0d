"""The buttons for an error that a script of a page shows."""

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Template

__all__ = ["remedy_parts"]


@get("/remedies/{code:str}", sync_to_thread=False)
def remedy_part(code: FromPath[str]) -> Template:
    """Show what can be done about an error that is of no job; nothing, where nothing can."""
    context = {"code": code, "of_job": None, "rescuable": False}
    return Template("parts/remedies.html", context=context)


def remedy_parts() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [remedy_part]
