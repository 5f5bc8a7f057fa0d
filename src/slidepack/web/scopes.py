"""What the token of a script needs for each route: one table. What is not in it needs `admin`."""

import asyncio
from typing import Any, Final

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.exceptions import SerializationException
from litestar.handlers import BaseRouteHandler

from slidepack.daemon.imports import source_kind
from slidepack.daemon.store.access import Scope
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.callers import caller_of

__all__ = ["ROUTES", "require_scope", "scope_of"]

_ADD_MODEL: Final = "POST /api/v1/models"
_OLLAMA: Final = "ollama:"

ROUTES: Final[dict[Scope, frozenset[str]]] = {
    # Seeing what there is, and what came of it.
    "read": frozenset(
        {
            "GET /api/v1/datasets",
            "GET /api/v1/datasets/uploads/{draft_id}",
            "GET /api/v1/datasets/{dataset_id}",
            "GET /api/v1/datasets/{dataset_id}/rejects",
            "GET /api/v1/datasets/{dataset_id}/removal",
            "GET /api/v1/datasets/uploads/{draft_id}/check",
            "GET /api/v1/digest",
            "GET /api/v1/doctor",
            "GET /api/v1/events",
            "GET /api/v1/exports",
            "GET /api/v1/exports/{export_id}",
            "GET /api/v1/exports/{export_id}/archive",
            "GET /api/v1/exports/{export_id}/files/{name}",
            "GET /api/v1/hardware",
            "GET /api/v1/health",
            "GET /api/v1/jobs",
            "GET /api/v1/jobs/{job_id}",
            "GET /api/v1/jobs/{job_id}/adapter",
            "GET /api/v1/jobs/{job_id}/chart",
            "GET /api/v1/jobs/{job_id}/checkpoints",
            "GET /api/v1/jobs/{job_id}/exports",
            "GET /api/v1/jobs/{job_id}/first-row",
            "GET /api/v1/jobs/{job_id}/log",
            "GET /api/v1/jobs/{job_id}/removal",
            "GET /api/v1/jobs/{job_id}/series",
            "GET /api/v1/jobs/{job_id}/stream",
            "GET /api/v1/models",
            "GET /api/v1/models/{model_id}",
            "GET /api/v1/models/{model_id}/removal",
            "GET /api/v1/notices",
            "GET /api/v1/notices/settings",
            "GET /api/v1/notifiers",
            "GET /api/v1/plan",
            "GET /api/v1/policy",
            "GET /api/v1/policy/openings",
            "GET /api/v1/policy/state",
            "GET /api/v1/queue/end",
            "GET /api/v1/stream",
            "GET /api/v1/sweeps",
            "GET /api/v1/sweeps/{sweep_id}",
            "GET /api/v1/sweeps/{sweep_id}/best",
            "GET /api/v1/system/sleep",
            "GET /metrics",
            "GET /schema",
            "GET /schema/openapi.json",
        }
    ),
    # What jobs are made of, adding them and steering them.
    "jobs": frozenset(
        {
            "DELETE /api/v1/datasets/uploads/{draft_id}",
            "DELETE /api/v1/datasets/{dataset_id}",
            "DELETE /api/v1/exports/{export_id}",
            "DELETE /api/v1/jobs/{job_id}",
            "DELETE /api/v1/models/{model_id}",
            "DELETE /api/v1/sweeps/{sweep_id}",
            "POST /api/v1/datasets/uploads",
            "POST /api/v1/datasets/uploads/{draft_id}/check",
            "POST /api/v1/datasets/{dataset_id}/reread",
            "POST /api/v1/exports/{export_id}/cancel",
            "POST /api/v1/jobs",
            "POST /api/v1/jobs/{job_id}/cancel",
            "POST /api/v1/jobs/{job_id}/continue",
            "POST /api/v1/jobs/{job_id}/duplicate",
            "POST /api/v1/jobs/{job_id}/exports",
            "POST /api/v1/jobs/{job_id}/move",
            "POST /api/v1/jobs/{job_id}/smaller",
            "POST /api/v1/jobs/{job_id}/pause",
            "POST /api/v1/jobs/{job_id}/reschedule",
            "POST /api/v1/jobs/{job_id}/resume",
            "POST /api/v1/jobs/{job_id}/retry",
            # By a path of this machine it needs `admin`, as data by path do.
            _ADD_MODEL,
            "POST /api/v1/plan",
            "POST /api/v1/policy",
            "POST /api/v1/preflight",
            "POST /api/v1/queue/act",
            "POST /api/v1/queue/move",
            "POST /api/v1/queue/pause",
            "POST /api/v1/queue/resume",
            "POST /api/v1/sweeps",
            "POST /api/v1/sweeps/{sweep_id}/cancel",
            "POST /api/v1/sweeps/{sweep_id}/members",
            "PUT /api/v1/datasets",
            "PUT /api/v1/datasets/uploads/{draft_id}/files/{number}",
            "PUT /api/v1/policy",
        }
    ),
    # Talking to a model.
    "chat": frozenset(
        {
            "DELETE /api/v1/chat/sessions/{session_id}",
            "DELETE /api/v1/chat/sessions/{session_id}/asks/{ask_id}",
            "DELETE /v1/{path}",
            "GET /api/v1/chat/sessions",
            "GET /api/v1/chat/sessions/{session_id}",
            "GET /v1/models",
            "GET /v1/models/{model}",
            "GET /v1/{path}",
            "POST /api/v1/chat/sessions",
            "POST /api/v1/chat/sessions/{session_id}/asks",
            "POST /v1/chat/completions",
            "POST /v1/{path}",
        }
    ),
    # Who gets in, secrets, the machine itself, and any file that the daemon can read.
    "admin": frozenset(
        {
            "DELETE /api/v1/notifiers/{notifier_id}",
            "DELETE /api/v1/sessions",
            "DELETE /api/v1/sessions/{session_id}",
            "DELETE /api/v1/tokens/{token_id}",
            "GET /api/v1/access",
            "GET /api/v1/doctor/report",
            "GET /api/v1/policy/programs",
            "GET /api/v1/sessions",
            "GET /api/v1/settings",
            "GET /api/v1/tokens",
            "PATCH /api/v1/settings",
            "POST /api/v1/datasets/paths",
            "POST /api/v1/doctor",
            "POST /api/v1/login-links",
            "POST /api/v1/notifiers",
            "POST /api/v1/notifiers/{notifier_id}/test",
            "POST /api/v1/queue/end/cancel",
            "POST /api/v1/tokens",
            "PUT /api/v1/notices/settings",
            "PUT /api/v1/password",
            "PUT /api/v1/queue/end",
        }
    ),
}


def scope_of(method: str, path: str) -> Scope:
    """Return what a route needs.

    Args:
        method: of the request.
        path: of the route, as `/api/v1/jobs/{job_id}`.
    """
    route = f"{method} {path}"
    return next((scope for scope, routes in ROUTES.items() if route in routes), "admin")


async def require_scope(
    connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler
) -> None:
    """Refuse a token that may not do what a route does; a browser's session may do all.

    Raises:
        SlidepackError: DAEMON-FORBIDDEN.
    """
    caller = caller_of(connection)
    if caller is None:
        return
    method, path = str(connection.scope.get("method")), connection.scope["path_template"]
    wanted = scope_of(method, path)
    if f"{method} {path}" == _ADD_MODEL and not caller.may("admin"):
        wanted = await _scope_of_model(connection, wanted)
    if not caller.may(wanted):
        raise SlidepackError(
            "DAEMON-FORBIDDEN",
            "This token may not do that.",
            why=f"it may {', '.join(caller.scopes)}, and this needs {wanted}",
            fix="Make one that may: `slidepack tokens add`, or the settings page.",
        )


async def _scope_of_model(connection: ASGIConnection[Any, Any, Any, Any], plain: Scope) -> Scope:
    """Return what adding a model needs, by where it comes from."""
    assert isinstance(connection, Request)
    try:
        # What the route gets is this very object: it is read once.
        data = await connection.json()
    except SerializationException:
        return plain  # The route says what is wrong with it.
    source = data.get("source") if isinstance(data, dict) else None
    if not isinstance(source, str):
        return plain  # As well.
    return "admin" if await asyncio.to_thread(_is_path, source.strip()) else plain


def _is_path(source: str) -> bool:
    """Return whether a model's source is neither a hub id nor a name of Ollama's; the answer to
    who may not know does not depend on whether there is such a file."""
    if source.startswith(_OLLAMA):
        return False
    try:
        return source_kind(source) != "hub"
    except SlidepackError:
        return True
