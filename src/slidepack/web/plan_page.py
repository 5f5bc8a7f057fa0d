"""The page of the plan: who trains where and when, how good that is, and why the rest waits."""

import asyncio
import time
from typing import Any

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.response import Template

from slidepack.daemon.service import Service
from slidepack.web.access import Access
from slidepack.web.contexts import PlanPage
from slidepack.web.page_session import csrf_of
from slidepack.web.plan_view import PlanView, plan_view

__all__ = ["plan_now", "plan_pages"]

AnyRequest = Request[Any, Any, Any]


@get("/plan")
async def plan(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show the plan."""
    page = await asyncio.to_thread(_plan, request, service, access)
    return Template("plan.html", context={"page": page})


@get("/plan/part")
async def plan_part(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show what of the page changes."""
    page = await asyncio.to_thread(_plan, request, service, access)
    return Template("parts/plan.html", context={"page": page})


def plan_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [plan, plan_part]


def plan_now(service: Service) -> PlanView | None:
    """Return the newest plan as pages draw it; None while there is none."""
    planned = service.replanner.plan()
    if planned is None:
        return None
    names = {key: service.hardware.name_of(key) for key in planned.plan.max_lanes}
    return plan_view(planned, service.jobs.names_unended(), names)


def _plan(request: AnyRequest, service: Service, access: Access) -> PlanPage:
    return PlanPage(
        csrf_token=csrf_of(request, access),
        view=plan_now(service),
        policy=service.policy.state(time.time()),
    )
