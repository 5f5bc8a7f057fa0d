"""The Litestar application."""

import functools
from pathlib import Path

from jinja2 import StrictUndefined
from litestar import Litestar
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.plugins.htmx import HTMXPlugin
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.template import TemplateConfig
from litestar.types import ASGIApp

from slidepack.daemon.service import Service
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.judge.table import judge_table
from slidepack.web import format as formats
from slidepack.web.access import Access
from slidepack.web.api import api_router
from slidepack.web.errors import (
    on_http_exception,
    on_slidepack_error,
    on_too_deep,
    on_unexpected,
)
from slidepack.web.guard import Guard
from slidepack.web.login_page import login_context
from slidepack.web.metrics import metrics
from slidepack.web.openai_api import openai_router
from slidepack.web.pages import page_router
from slidepack.web.pump import Pump
from slidepack.web.remedies import remedies
from slidepack.web.scopes import require_scope
from slidepack.web.static_files import static_router
from slidepack.web.sweep_view import metric_of, written

_HERE = Path(__file__).parent


def create_app(service: Service, access: Access) -> ASGIApp:
    """Return the guarded application over a service; the caller starts and stops the service."""
    engine = template_engine()
    # A part of every page, whatever else it shows.
    engine.engine.globals["in_clear"] = access.listening.in_clear
    pump = Pump(
        changes=service.changes,
        jobs=service.jobs,
        runlog=service.runlog,
        stopping=service.stopping,
    )
    app = Litestar(
        route_handlers=[
            page_router(),
            api_router(),
            openai_router(),
            metrics,
            static_router(_HERE / "static"),
        ],
        guards=[require_scope],
        dependencies={
            "service": Provide(lambda: service, sync_to_thread=False),
            "access": Provide(lambda: access, sync_to_thread=False),
            "pump": Provide(lambda: pump, sync_to_thread=False),
        },
        exception_handlers={
            SlidepackError: on_slidepack_error,
            HTTPException: on_http_exception,
            RecursionError: on_too_deep,
            Exception: on_unexpected,
        },
        template_config=TemplateConfig(instance=engine),
        plugins=[HTMXPlugin()],
        openapi_config=OpenAPIConfig(
            title="Slidepack", version="1", path="/schema", render_plugins=[JsonRenderPlugin()]
        ),
        logging_config=None,
    )
    return Guard(app, access, functools.partial(_refusal, engine, access))


def _refusal(engine: JinjaTemplateEngine, access: Access, report: ErrorReport, path: str) -> str:
    """Return the page of a refusal: the login, for whoever has to log in first."""
    if report.code == "DAEMON-ACCESS":
        return engine.get_template("login.html").render(login_context(access, path, report))
    return engine.get_template("error.html").render(error=report)


def template_engine() -> JinjaTemplateEngine:
    """Return the engine of all pages; a field that does not exist is an error, not a blank."""
    engine = JinjaTemplateEngine(directory=_HERE / "templates")
    engine.engine.undefined = StrictUndefined
    engine.engine.trim_blocks = True
    engine.engine.lstrip_blocks = True
    engine.engine.filters.update(
        size=formats.size,
        duration=formats.duration,
        clock=formats.clock,
        count=formats.count,
        loss=formats.loss,
        sentence=formats.sentence,
        plural=formats.plural,
        remedies=remedies,
        judge_table=judge_table,
        number=formats.number,
        setting=written,
        sweep_metric=metric_of,
    )
    return engine
