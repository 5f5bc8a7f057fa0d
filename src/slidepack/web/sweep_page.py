"""The pages of sweeps: all of them, and one with its members, live while these train."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery
from litestar.plugins.htmx import ClientRedirect
from litestar.response import Template

from slidepack.daemon.planning.picture import job_of
from slidepack.daemon.service import Service
from slidepack.daemon.sweeps.lane import read_rungs
from slidepack.daemon.sweeps.results import Ranking, SweepSummary
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import Access
from slidepack.web.page_parts import leave, require_known
from slidepack.web.page_session import csrf_of
from slidepack.web.sweep_view import SweepView, sweep_view
from slidepack.web.sweeps_api import sweeps_of

__all__ = ["SweepPage", "SweepsPage", "sweep_pages"]

AnyRequest = Request[Any, Any, Any]

_PARTS: Final = ("top", "rows", "plots")
_ACTIONS: Final = ("cancel", "remove")


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPage:
    """One sweep."""

    csrf_token: str
    view: SweepView


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepsPage:
    """All sweeps."""

    csrf_token: str
    sweeps: list[SweepSummary]


@get("/sweeps")
async def sweeps(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show all sweeps."""
    return Template("sweeps.html", context={"page": await _sweeps(request, service, access)})


@get("/sweeps/part")
async def sweeps_part(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show the list alone."""
    return Template("parts/sweeps.html", context={"page": await _sweeps(request, service, access)})


@get("/sweeps/{sweep_id:int}")
async def sweep(
    request: AnyRequest,
    service: Service,
    access: Access,
    sweep_id: FromPath[int],
    by: FromQuery[Ranking] = "selection",
) -> Template:
    """Show a sweep."""
    page = await asyncio.to_thread(_sweep, request, service, access, sweep_id, by)
    return Template("sweep.html", context={"page": page})


@get("/sweeps/{sweep_id:int}/parts/{part:str}")
async def sweep_part(
    request: AnyRequest,
    service: Service,
    access: Access,
    sweep_id: FromPath[int],
    part: FromPath[str],
    by: FromQuery[Ranking] = "selection",
) -> Response[Any]:
    """Show one part of a sweep's page."""
    require_known(part, _PARTS)
    try:
        page = await asyncio.to_thread(_sweep, request, service, access, sweep_id, by)
    except SlidepackError as error:
        return leave(error, "/sweeps")
    return Template(f"parts/sweep_{part}.html", context={"page": page})


@post("/sweeps/{sweep_id:int}/{action:str}", status_code=200)
async def act_on_sweep(
    request: AnyRequest,
    service: Service,
    access: Access,
    sweep_id: FromPath[int],
    action: FromPath[str],
) -> Response[Any]:
    """End the members that have not ended, or delete a sweep that has."""
    require_known(action, _ACTIONS)
    if action == "remove":
        await asyncio.to_thread(sweeps_of(service).remove, sweep_id)
        return ClientRedirect("/sweeps")
    await asyncio.to_thread(sweeps_of(service).cancel, sweep_id)
    page = await asyncio.to_thread(_sweep, request, service, access, sweep_id, "selection")
    return Template("parts/sweep_top.html", context={"page": page})


def sweep_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [sweeps, sweeps_part, sweep, sweep_part, act_on_sweep]


async def _sweeps(request: AnyRequest, service: Service, access: Access) -> SweepsPage:
    found = await asyncio.to_thread(sweeps_of(service).list_sweeps)
    return SweepsPage(csrf_token=csrf_of(request, access), sweeps=found)


def _sweep(
    request: AnyRequest, service: Service, access: Access, sweep_id: int, by: Ranking
) -> SweepPage:
    table = sweeps_of(service).show(sweep_id, by)
    planned = service.replanner.plan()
    tasks = () if planned is None else planned.plan.tasks
    # A plan is made anew only now and then; what it said of a moment that has passed says nothing.
    now = time.time()
    ends = {
        number: task.end if task.end is not None and task.end > now else None
        for task in tasks
        if (number := job_of(task.task)) is not None
    }
    return SweepPage(
        csrf_token=csrf_of(request, access),
        view=sweep_view(table, read_rungs(service.paths, sweep_id), ends),
    )
