"""The page of the schedule: the hours, the programs and the limits that decide who has the GPU."""

import asyncio
import time
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from litestar import Request, Response, get, post
from litestar.enums import RequestEncodingType
from litestar.handlers import HTTPRouteHandler
from litestar.params import Body, FromPath, FromQuery
from litestar.response import Redirect, Template

from slidepack.daemon.policy.openings import next_clock, next_openings, opening_text, zone_name
from slidepack.daemon.policy.programs import Program
from slidepack.daemon.policy.rules import WEEKDAYS, Policy, Weekday
from slidepack.daemon.policy.state import PolicyState
from slidepack.daemon.policy.windows import policy_zone
from slidepack.daemon.service import Service
from slidepack.daemon.system.queue_end import EndAction, QueueEndState
from slidepack.daemon.system.sleep_guard import GuardState
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import Access
from slidepack.web.page_parts import require_known
from slidepack.web.page_session import csrf_of
from slidepack.web.policy_api import programs_now
from slidepack.web.schedule_view import (
    PRESETS,
    FieldGroup,
    HoursForm,
    HoursRow,
    hours_form,
    limit_groups,
    preset_form,
    read_hours,
    read_limits,
)

__all__ = ["schedule_pages"]

AnyRequest = Request[Any, Any, Any]
Form = Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)]
Part = Literal["now", "hours", "programs", "running", "limits", "power"]

_PARTS: Final[tuple[Part, ...]] = ("now", "hours", "programs", "running", "limits", "power")
_WITH_PROGRAMS: Final = ("", "programs", "running")
_OPENINGS: Final = 3
_MOST_PROGRAMS: Final = 12
_HOUR: Final = 3600.0
_DAY_NAMES: Final[dict[Weekday, str]] = dict(
    zip(WEEKDAYS, ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"), strict=True)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulePage:
    """The page of the schedule."""

    csrf_token: str
    policy: Policy
    state: PolicyState
    openings: tuple[str, ...]
    """The next hours in which training may run, in words."""
    zone: str
    """Name of the zone in which the hours are."""
    offset: str
    """Of that zone's clock now, as `UTC+01:00`."""
    hours: HoursForm
    days: dict[Weekday, str]
    presets: dict[str, str]
    """Name -> what its button says."""
    groups: tuple[FieldGroup, ...]
    ignored: str
    """Patterns of programs whose use of a card never counts, one a line, as stored or as typed."""
    errors: dict[str, str]
    """What is wrong with a field of the programs or the limits, by its name."""
    told: str
    """What became of the last button of the limits."""
    typed: str
    """A pattern that was refused."""
    running: tuple[Program, ...]
    search: str
    more: int
    """Running programs beyond those shown."""
    end: QueueEndState
    guard: GuardState
    disk_floor_gb: float


@get("/schedule")
async def schedule(
    request: AnyRequest, service: Service, access: Access, search: FromQuery[str] = ""
) -> Template:
    """Show the schedule."""
    page = await asyncio.to_thread(_page, request, service, access, search=search)
    return Template("schedule.html", context={"page": page})


@get("/schedule/parts/{part:str}")
async def schedule_part(
    request: AnyRequest,
    service: Service,
    access: Access,
    part: FromPath[str],
    search: FromQuery[str] = "",
) -> Template:
    """Show one part of the schedule."""
    require_known(part, _PARTS)
    page = await asyncio.to_thread(_page, request, service, access, part, search=search)
    return Template(f"parts/schedule_{part}.html", context={"page": page})


@post("/schedule/hours", status_code=200)
async def save_hours(
    request: AnyRequest, service: Service, access: Access, data: Form
) -> Response[Any]:
    """Store the hours; or fill in a preset, add a row, or take one out, and store nothing."""
    page = await asyncio.to_thread(_page, request, service, access, _shown(request, "hours"))
    form, changes = read_hours(data)
    if preset := data.get("preset"):
        require_known(preset, tuple(PRESETS))
        form = preset_form(preset, form)
    elif data.get("add"):
        blank = HoursRow(days=(), start="23:00", end="07:00")
        form = replace(form, mode="windows", rows=(*form.rows, blank), errors={})
    elif not data.get("remove") and not form.wrong:
        await asyncio.to_thread(service.policy.change_policy, changes)
        page = await asyncio.to_thread(_page, request, service, access, _shown(request, "hours"))
        return _answer(request, "hours", replace(page, hours=replace(page.hours, told="Saved.")))
    return _answer(request, "hours", replace(page, hours=form), stored=False)


@post("/schedule/programs", status_code=200)
async def change_programs(
    request: AnyRequest, service: Service, access: Access, data: Form
) -> Response[Any]:
    """Put a program on the list of those beside which nothing trains, or take one off."""
    listed = service.policy.policy().exclusive_apps
    changes: dict[str, Any] = {}
    typed = data.get("add", "").strip()
    if typed and typed not in listed:
        changes["exclusive_apps"] = [*listed, typed]
    elif "remove" in data:
        changes["exclusive_apps"] = [one for one in listed if one != data["remove"]]
    elif "games" in data:
        changes["detect_games"] = data["games"] == "on"
    problem = await asyncio.to_thread(_change, service, changes)
    page = await asyncio.to_thread(
        _page, request, service, access, _shown(request, "programs"), search=data.get("search", "")
    )
    if not problem:
        return _answer(request, "programs", page)
    told = replace(page, errors={"exclusive_apps": problem}, typed=typed)
    return _answer(request, "programs", told, stored=False)


@post("/schedule/limits", status_code=200)
async def save_limits(
    request: AnyRequest, service: Service, access: Access, data: Form
) -> Response[Any]:
    """Store the limits; all of them, or none where one is wrong."""
    changes, errors = read_limits(data)
    if not errors:
        await asyncio.to_thread(service.policy.change_policy, changes)
        page = await asyncio.to_thread(_page, request, service, access, _shown(request, "limits"))
        return _answer(request, "limits", replace(page, told="Saved."))
    page = await asyncio.to_thread(_page, request, service, access, _shown(request, "limits"))
    typed = replace(
        page,
        groups=limit_groups(page.policy, data, errors),
        ignored=data.get("ignored_processes", page.ignored),
        errors=errors,
        told="Not saved: see the fields.",
    )
    return _answer(request, "limits", typed, stored=False)


@post("/schedule/pause", status_code=200)
async def pause(request: AnyRequest, service: Service, access: Access, data: Form) -> Response[Any]:
    """Give the GPU back for an hour, until a time by the clock, or until somebody resumes."""
    now = time.time()
    lengths = {"hour": lambda: now + _HOUR, "clock": lambda: _until(service, data, now)}
    choice = data.get("for", "resume")
    require_known(choice, (*lengths, "resume"))
    until = lengths[choice]() if choice in lengths else None
    await asyncio.to_thread(service.policy.pause, until)
    return _answer(
        request,
        "now",
        await asyncio.to_thread(_page, request, service, access, _shown(request, "now")),
    )


@post("/schedule/resume", status_code=200)
async def resume(request: AnyRequest, service: Service, access: Access) -> Response[Any]:
    """End the pause."""
    await asyncio.to_thread(service.policy.resume)
    return _answer(
        request,
        "now",
        await asyncio.to_thread(_page, request, service, access, _shown(request, "now")),
    )


@post("/schedule/power", status_code=200)
async def choose_end(
    request: AnyRequest, service: Service, access: Access, data: Form
) -> Response[Any]:
    """Choose what the machine does once the queue is done."""
    action = data.get("action", "")
    known: tuple[EndAction, ...] = ("nothing", "suspend", "poweroff")
    require_known(action, known)
    chosen: EndAction = next(one for one in known if one == action)
    await asyncio.to_thread(service.queue_end.arm, chosen)
    service.changes.bump()
    return _answer(
        request,
        "power",
        await asyncio.to_thread(_page, request, service, access, _shown(request, "power")),
    )


def schedule_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [
        schedule,
        schedule_part,
        save_hours,
        change_programs,
        save_limits,
        pause,
        resume,
        choose_end,
    ]


def _answer(
    request: AnyRequest, part: Part, page: SchedulePage, *, stored: bool = True
) -> Response[Any]:
    """Return the part to htmx; to a browser without scripts the page, anew where that stands."""
    if request.headers.get("hx-request"):
        return Template(f"parts/schedule_{part}.html", context={"page": page})
    if stored:
        return Redirect("/schedule", status_code=303)
    return Template("schedule.html", context={"page": page})


def _change(service: Service, changes: dict[str, Any]) -> str:
    """Change the policy; return what is wrong with that, or an empty text."""
    try:
        if changes:
            service.policy.change_policy(changes)
    except SlidepackError as error:
        if error.report.code != "DAEMON-REQUEST-INVALID":
            raise
        why = error.report.why.partition(" - at `$")[0].replace("exclusive_apps", "The list", 1)
        return f"{why}."
    return ""


def _until(service: Service, data: dict[str, str], now: float) -> float:
    text = data.get("until", "").strip()
    try:
        clock = datetime.strptime(text[:5], "%H:%M").time()
    except ValueError as error:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "The queue cannot be paused until then.",
            why=f"{text!r} is no time",
            fix="Give a time such as 23:00.",
        ) from error
    return next_clock(service.policy.policy(), now, clock)


def _offset(moment: datetime) -> str:
    written = f"{moment:%z}"
    return f"UTC{written[:3]}:{written[3:5]}"


def _shown(request: AnyRequest, part: Part) -> str:
    """Return which part an answer shows; empty for all of the page, where no script runs."""
    return part if request.headers.get("hx-request") else ""


def _page(
    request: AnyRequest, service: Service, access: Access, part: str = "", *, search: str = ""
) -> SchedulePage:
    """Return what the page shows; for a part alone, what is costly and not of it is left out."""
    now = time.time()
    policy = service.policy.policy()
    zone = policy_zone(policy)
    wanted = search.strip().casefold()
    programs = [program for program in programs_now(service) if wanted in program.name.casefold()]
    return SchedulePage(
        csrf_token=csrf_of(request, access),
        policy=policy,
        state=service.policy.state(now),
        openings=tuple(
            opening_text(opening, now, zone) for opening in next_openings(policy, now, _OPENINGS)
        ),
        zone=zone_name(policy),
        offset=_offset(datetime.fromtimestamp(now, zone)),
        hours=hours_form(policy),
        days=_DAY_NAMES,
        presets={name: title for name, (title, _, _) in PRESETS.items()},
        groups=limit_groups(policy),
        ignored="\n".join(policy.ignored_processes),
        errors={},
        told="",
        typed="",
        running=tuple(programs[:_MOST_PROGRAMS]),
        search=search,
        more=max(len(programs) - _MOST_PROGRAMS, 0),
        end=service.queue_end.state(time.monotonic()),
        guard=service.guard.state(),
        disk_floor_gb=service.settings.disk_floor_gb,
    )
