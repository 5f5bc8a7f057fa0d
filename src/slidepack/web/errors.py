"""The one place where errors become HTTP responses: JSON for the API, HTML for the page."""

import logging
from typing import Any

from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.response import Template

from slidepack.daemon.requests import advice
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.web.login_limits import TooManyTries

logger = logging.getLogger(__name__)

AnyRequest = Request[Any, Any, Any]


def on_slidepack_error(request: AnyRequest, error: SlidepackError) -> Response[Any]:
    """Answer with the error's own text and status."""
    response = _respond(request, error.report, error.http_status)
    response.headers.update(retry_header(error))
    return response


def retry_header(error: Exception | None) -> dict[str, str]:
    """Return the header that says when to try again, where an error knows that."""
    return {"retry-after": str(error.seconds)} if isinstance(error, TooManyTries) else {}


def on_http_exception(request: AnyRequest, error: HTTPException) -> Response[Any]:
    """Answer a framework error (unknown path, bad body) in our shape."""
    detail = error.detail
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        detail = "; ".join(map(_problem, error.extra)) or detail
    report = ErrorReport(
        code="DAEMON-REQUEST-INVALID",
        what="The request cannot be answered.",
        why=f"{request.method} {request.url.path}: {' '.join(detail.split())}",
        fix="See /schema/openapi.json for what there is.",
    )
    return _respond(request, report, error.status_code)


def _problem(found: dict[str, Any]) -> str:
    """Return what the framework found wrong with one value, and what a setting may be instead."""
    name = found.get("key", "")
    parts = (f"{name}: {found['message']}" if name else found["message"], advice(name))
    return "; ".join(filter(None, parts))


def on_too_deep(request: AnyRequest, _error: RecursionError) -> Response[Any]:
    """Answer a body that is nested deeper than any request of ours."""
    report = ErrorReport(
        code="DAEMON-REQUEST-INVALID",
        what="The request cannot be answered.",
        why=f"{request.method} {request.url.path}: its body is nested too deeply",
        fix="See /schema/openapi.json for what there is.",
    )
    return _respond(request, report, 400)


def on_unexpected(request: AnyRequest, error: Exception) -> Response[Any]:
    """Answer a bug of ours; the log has the traceback, the answer has none."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    report = ErrorReport(
        code="DAEMON-INTERNAL",
        what="The daemon failed to answer.",
        why=type(error).__name__,
        fix="Its log has the details; please report it.",
    )
    return _respond(request, report, 500)


def _respond(request: AnyRequest, report: ErrorReport, status: int) -> Response[Any]:
    if request.url.path.startswith(("/api/", "/schema")):
        return Response(report, status_code=status, media_type=MediaType.JSON)
    name = "parts/error.html" if request.headers.get("hx-request") else "error.html"
    return Template(name, context={"error": report}, status_code=status)
