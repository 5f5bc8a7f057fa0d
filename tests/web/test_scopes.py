"""Each route of the API is in the one table of scopes, and the table names no others."""

from litestar import Litestar

from slidepack.web.api import api_router
from slidepack.web.metrics import metrics
from slidepack.web.openai_api import openai_router
from slidepack.web.pages import page_router
from slidepack.web.scopes import ROUTES, scope_of

_SCHEMA = {"GET /schema", "GET /schema/openapi.json"}
"""The framework's own."""


def _routes(*handlers: object) -> set[str]:
    app = Litestar(route_handlers=list(handlers), openapi_config=None)  # type: ignore[arg-type]
    return {
        f"{method} {route.path_format}"
        for route in app.routes
        for method in getattr(route, "methods", ())
        if method != "OPTIONS"
    }


def test_every_route_of_the_api_has_a_scope_of_its_own() -> None:
    named = [route for routes in ROUTES.values() for route in routes]
    assert len(named) == len(set(named)), "a route has one scope"
    assert _routes(api_router(), openai_router(), metrics) == set(named) - _SCHEMA


def test_whatever_is_not_in_the_table_needs_admin() -> None:
    assert scope_of("GET", "/api/v1/what-comes-next") == "admin"
    assert scope_of("OPTIONS", "/api/v1/jobs") == "admin"
    for route in _routes(page_router()):
        assert scope_of(*route.split(" ", 1)) == "admin", "pages are for browsers"


def test_reading_changes_nothing_and_secrets_are_not_read() -> None:
    assert all(route.startswith("GET ") for route in ROUTES["read"])
    for secret in ("sessions", "tokens", "password", "settings", "access", "login-links", "paths"):
        found = {
            scope
            for scope, routes in ROUTES.items()
            for route in routes
            if f"/{secret}" in route and "/chat/" not in route and "/notices/" not in route
        }
        assert found == {"admin"}, secret
