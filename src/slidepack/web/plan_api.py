"""The plan over the API: who runs where and when, and what would be if."""

import asyncio
import time

from litestar import get, post
from litestar.handlers import HTTPRouteHandler

from slidepack.daemon.planning.question import PlanQuestion
from slidepack.daemon.planning.report import PlanReport
from slidepack.daemon.planning.what_if import WhatIf
from slidepack.daemon.service import Service


@get("/plan")
async def show_plan(service: Service) -> PlanReport:
    """Plan the queue as it is, with the solver; takes up to ten seconds."""
    return await asyncio.to_thread(_question(service).ask, time.time())


@post("/plan", status_code=200)
async def plan_what_if(service: Service, data: WhatIf) -> PlanReport:
    """Plan with other devices, jobs or windows; nothing is changed."""
    return await asyncio.to_thread(_question(service).ask, time.time(), data)


def plan_routes() -> list[HTTPRouteHandler]:
    """Return the handlers, for the API's router."""
    return [show_plan, plan_what_if]


def _question(service: Service) -> PlanQuestion:
    return PlanQuestion(
        reader=service.queue_reader(),
        maker=service.request_maker(),
        book=service.costs,
        jobs=service.jobs,
        policy=service.policy.policy,
        held=lambda: _held(service),
    )


def _held(service: Service) -> str:
    hold = service.policy.hold()
    return "" if hold is None else hold.reason
