"""The page of the queue: all jobs in their order, to be found, rearranged and acted on."""

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter
from litestar.response import Template

from slidepack.daemon.policy.state import PolicyState
from slidepack.daemon.service import Service
from slidepack.daemon.states import JobState
from slidepack.daemon.store.queue_list import QueueList, QueuePage
from slidepack.daemon.store.sweeps import SweepStore
from slidepack.daemon.store.timing import MAX_PRIORITY
from slidepack.web.access import Access
from slidepack.web.page_parts import require_known
from slidepack.web.page_session import csrf_of
from slidepack.web.plan_page import plan_now
from slidepack.web.plan_view import PlanView
from slidepack.web.queue_list_view import (
    SHOWN,
    Section,
    Shown,
    jobs_shown,
    planned_tasks,
    section_of,
    wanted,
)

__all__ = ["QueuePageView", "queue_pages"]

AnyRequest = Request[Any, Any, Any]

_PARTS: Final = ("live", "waiting", "ended", "plan")
_WAITING_ON_A_PAGE: Final = 50
_ENDED_ON_A_PAGE: Final = 25
_MOST_PAGES: Final = 1_000_000
_MOST_OPEN: Final = 100
_NOTHING: Final = QueuePage(entries=(), total=0, next_job=None)


class QueueQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What of the queue is looked at."""

    q: str = ""
    show: Shown = "all"
    waiting: int = 1
    """Page of the list of who waits."""
    ended: int = 1
    open: str = ""
    """Sweeps whose members are shown, as numbers with commas between."""

    @property
    def opened(self) -> frozenset[int]:
        """The sweeps whose members are shown."""
        numbers = [int(number) for number in self.open.split(",") if number]
        return frozenset(numbers[:_MOST_OPEN])

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self.show == "all" and not self.q.strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuePageView:
    """The page of the queue, or a part of it."""

    csrf_token: str
    query: QueueQuery
    policy: PolicyState
    counts: dict[JobState, int]
    live: Section
    waiting: Section
    ended: Section
    plan: PlanView | None
    """None while there is none, or where a part without it is asked for."""
    shown: tuple[str, ...] = tuple(SHOWN)
    most_priority: int = MAX_PRIORITY


Text = Annotated[str, QueryParameter(max_length=200)]
PageNumber = Annotated[int, QueryParameter(ge=1, le=_MOST_PAGES)]
Opened = Annotated[str, QueryParameter(name="open", pattern=r"^[0-9,]*$", max_length=1000)]


@get("/queue")
async def queue(
    request: AnyRequest,
    service: Service,
    access: Access,
    q: Text = "",
    show: Shown = "all",
    waiting: PageNumber = 1,
    ended: PageNumber = 1,
    opened: Opened = "",
) -> Template:
    """Show the queue."""
    query = QueueQuery(q=q, show=show, waiting=waiting, ended=ended, open=opened)
    page = await asyncio.to_thread(_queue, request, service, access, query)
    return Template("queue.html", context={"page": page})


@get("/queue/parts/{part:str}")
async def queue_part(
    request: AnyRequest,
    service: Service,
    access: Access,
    part: FromPath[str],
    q: Text = "",
    show: Shown = "all",
    waiting: PageNumber = 1,
    ended: PageNumber = 1,
    opened: Opened = "",
) -> Template:
    """Show what of the page changes."""
    require_known(part, _PARTS)
    query = QueueQuery(q=q, show=show, waiting=waiting, ended=ended, open=opened)
    page = await asyncio.to_thread(_queue, request, service, access, query, part)
    return Template(f"parts/queue_{part}.html", context={"page": page})


def queue_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [queue, queue_part]


def _queue(
    request: AnyRequest, service: Service, access: Access, query: QueueQuery, part: str = ""
) -> QueuePageView:
    """Return what the page shows; for a part alone, what is not of it is left out."""

    def shows(name: str) -> bool:
        return part in ("", name)

    store, looked_for = QueueList(service.database), wanted(query.show, query.q)
    return QueuePageView(
        csrf_token=csrf_of(request, access),
        query=query,
        policy=service.policy.state(time.time()),
        counts=service.jobs.counts(),
        live=_section(service, store.live(looked_for) if shows("live") else _NOTHING, query),
        waiting=_section(
            service,
            store.waiting(looked_for, _WAITING_ON_A_PAGE, (query.waiting - 1) * _WAITING_ON_A_PAGE)
            if shows("waiting")
            else _NOTHING,
            query,
            page=query.waiting,
            per_page=_WAITING_ON_A_PAGE,
        ),
        ended=_section(
            service,
            store.ended(looked_for, _ENDED_ON_A_PAGE, (query.ended - 1) * _ENDED_ON_A_PAGE)
            if shows("ended")
            else _NOTHING,
            query,
            page=query.ended,
            per_page=_ENDED_ON_A_PAGE,
        ),
        plan=plan_now(service) if shows("plan") else None,
    )


def _section(
    service: Service, found: QueuePage, query: QueueQuery, *, page: int = 1, per_page: int = 1
) -> Section:
    sweeps = {entry.sweep_id for entry in found.entries if entry.sweep_id is not None}
    return section_of(
        found,
        service.jobs.listed(jobs_shown(found, query.opened)),
        names=SweepStore(service.database).names(sweeps),
        tasks=planned_tasks(service.replanner.plan()) if found.entries else {},
        now=time.time(),
        page=page,
        per_page=per_page,
    )
