"""Errors in the shape of OpenAI's API."""

import logging
from typing import Any, Final

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException

from slidepack.engine.contract.errors import ErrorReport, SlidepackError

__all__ = ["OPENAI_PREFIX", "FieldError", "error_body", "openai_handlers"]

logger = logging.getLogger(__name__)

OPENAI_PREFIX: Final = "/v1/"
_TYPES: Final = {401: "authentication_error", 403: "permission_error"}

AnyRequest = Request[Any, Any, Any]


class FieldError(SlidepackError):
    """A field of the request that is not taken."""

    def __init__(self, param: str, why: str) -> None:
        """Build the refusal of a field.

        Args:
            param: its name.
            why: what is wrong with it.
        """
        super().__init__(
            "DAEMON-REQUEST-INVALID",
            f"The field {param} is not taken.",
            why=why,
            fix="Leave it out, or change it.",
        )
        self.param = param


def error_body(report: ErrorReport, status: int, param: str | None = None) -> dict[str, Any]:
    """Return an error as OpenAI's clients read it.

    Args:
        report: the error.
        status: of the response.
        param: the field that it is about.
    """
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    message = report.line().partition(": ")[2]
    return {"error": {"message": message, "type": kind, "param": param, "code": report.code}}


def openai_handlers() -> dict[Any, Any]:
    """Return the exception handlers of the routes."""
    return {
        SlidepackError: _on_slidepack_error,
        HTTPException: _on_http_exception,
        Exception: _on_unexpected,
    }


def _on_slidepack_error(_request: AnyRequest, error: SlidepackError) -> Response[Any]:
    param = error.param if isinstance(error, FieldError) else None
    return _respond(error.report, error.http_status, param)


def _on_http_exception(request: AnyRequest, error: HTTPException) -> Response[Any]:
    report = ErrorReport(
        code="DAEMON-REQUEST-INVALID",
        what="The request cannot be answered.",
        why=f"{request.method} {request.url.path}: {' '.join(error.detail.split())}",
        fix="There are /v1/chat/completions and /v1/models.",
    )
    return _respond(report, error.status_code)


def _on_unexpected(request: AnyRequest, error: Exception) -> Response[Any]:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    report = ErrorReport(
        code="DAEMON-INTERNAL",
        what="The daemon failed to answer.",
        why=type(error).__name__,
        fix="Its log has the details; please report it.",
    )
    return _respond(report, 500)


def _respond(report: ErrorReport, status: int, param: str | None = None) -> Response[Any]:
    body = msgspec.json.encode(error_body(report, status, param))
    return Response(body, status_code=status, media_type=MediaType.JSON)
