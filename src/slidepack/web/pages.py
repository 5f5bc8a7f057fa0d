"""The HTML pages and the parts of them that are fetched again while live."""

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Annotated, Any

from litestar import Request, Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.enums import RequestEncodingType
from litestar.params import Body, FromPath, FromQuery
from litestar.plugins.htmx import ClientRedirect
from litestar.response import Redirect, Template

from slidepack.daemon.doctor.judge import findings
from slidepack.daemon.queue import can_go_on
from slidepack.daemon.requests import JobRequest, ModelRequest, RetryRequest
from slidepack.daemon.service import Service
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import SESSION_SECONDS, Access
from slidepack.web.api import add_model_now
from slidepack.web.chat_page import chat_pages
from slidepack.web.contexts import HardwareCards, HomePage, JobPage, SamplePair
from slidepack.web.continue_api import continue_form
from slidepack.web.export_pages import export_page_routes
from slidepack.web.export_view import exports_view
from slidepack.web.forms import job_request
from slidepack.web.page_session import csrf_of
from slidepack.web.plan_page import plan_pages
from slidepack.web.results import JobDetail, job_detail, log_tail

AnyRequest = Request[Any, Any, Any]
Form = Annotated[dict[str, str], Body(media_type=RequestEncodingType.URL_ENCODED)]

_LOG_BYTES = 6000
_HOME_PARTS = ("hardware", "models", "library", "policy", "queue")
_JOB_PARTS = ("status", "actions", "continue", "samples", "judged", "history", "log")
_JOB_ACTIONS = ("cancel", "pause", "resume", "retry", "rescue")
_QUEUE_ACTIONS = ("pause", "resume")
_RESCUE = RetryRequest(resume=True, lr_factor=1 / 3)
"""What a run that diverged is offered."""


@get("/login")
async def login(access: Access, token: FromQuery[str] = "") -> Redirect:
    """Turn a one-time link into a session cookie."""
    session = await asyncio.to_thread(access.redeem, token)
    cookie = Cookie(
        key=access.cookie_name,
        value=session,
        httponly=True,
        samesite="strict",
        max_age=int(SESSION_SECONDS),
    )
    return Redirect("/", status_code=303, cookies=[cookie])


@get("/")
async def home(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show hardware, a new job, and the queue."""
    page = await asyncio.to_thread(_home, request, service, access)
    return Template("home.html", context={"page": page})


@get("/parts/{part:str}")
async def home_part(
    request: AnyRequest, service: Service, access: Access, part: FromPath[str]
) -> Template:
    """Show one part of the first page."""
    _require_known(part, _HOME_PARTS)
    page = await asyncio.to_thread(_home, request, service, access)
    return Template(f"parts/{part}.html", context={"page": page})


@get("/jobs/{job_id:int}")
async def job(
    request: AnyRequest, service: Service, access: Access, job_id: FromPath[int]
) -> Template:
    """Show a job."""
    page = await asyncio.to_thread(_job, request, service, access, job_id)
    return Template("job.html", context={"page": page})


@get("/jobs/{job_id:int}/parts/{part:str}")
async def job_part(
    request: AnyRequest,
    service: Service,
    access: Access,
    job_id: FromPath[int],
    part: FromPath[str],
) -> Template:
    """Show one part of a job's page."""
    _require_known(part, _JOB_PARTS)
    page = await asyncio.to_thread(_job, request, service, access, job_id)
    return Template(f"parts/job_{part}.html", context={"page": page})


@post("/jobs", status_code=200)
async def start_job(service: Service, data: Form) -> Response[Any]:
    """Queue a job from the form and show it."""
    request: JobRequest = job_request(data)
    added = await asyncio.to_thread(service.queue.add, request)
    return ClientRedirect(f"/jobs/{added.id}")


@post("/models", status_code=200)
async def add_model(request: AnyRequest, service: Service, access: Access, data: Form) -> Template:
    """Bring a model in from the form and show the models."""
    wanted = ModelRequest(source=data.get("source", "").strip(), name=data.get("name", "").strip())
    await asyncio.to_thread(add_model_now, service, wanted)
    page = await asyncio.to_thread(_home, request, service, access)
    return Template("parts/library.html", context={"page": page})


@post("/models/{model_id:str}/forget", status_code=200)
async def forget_model(
    request: AnyRequest, service: Service, access: Access, model_id: FromPath[str]
) -> Template:
    """Take a model off the list and show the models."""
    await asyncio.to_thread(service.queue.forget_model, model_id)
    page = await asyncio.to_thread(_home, request, service, access)
    return Template("parts/library.html", context={"page": page})


@post("/jobs/{job_id:int}/{action:str}", status_code=200)
async def act(
    request: AnyRequest,
    service: Service,
    access: Access,
    job_id: FromPath[int],
    action: FromPath[str],
) -> Response[Any]:
    """Cancel, pause, resume or retry a job and show what may be done next."""
    _require_known(action, _JOB_ACTIONS)
    commands: dict[str, Callable[[int], JobRecord]] = {
        "cancel": service.queue.cancel,
        "pause": service.queue.pause,
        "resume": service.queue.resume,
        "retry": service.queue.retry,
        "rescue": functools.partial(service.queue.retry, request=_RESCUE),
    }
    changed = await asyncio.to_thread(commands[action], job_id)
    if action in ("retry", "rescue"):
        return ClientRedirect(f"/jobs/{changed.id}")
    page = await asyncio.to_thread(_job, request, service, access, job_id)
    return Template("parts/job_actions.html", context={"page": page})


@post("/queue/{action:str}", status_code=200)
async def hold_queue(
    request: AnyRequest, service: Service, access: Access, action: FromPath[str]
) -> Template:
    """Give the GPU back until the user resumes, or resume; show how the policy stands."""
    _require_known(action, _QUEUE_ACTIONS)
    await asyncio.to_thread(service.policy.pause if action == "pause" else service.policy.resume)
    page = await asyncio.to_thread(_home, request, service, access)
    return Template("parts/policy.html", context={"page": page})


def page_router() -> Router:
    """Return the pages' routes."""
    return Router(
        path="/",
        include_in_schema=False,
        route_handlers=[
            login,
            home,
            home_part,
            job,
            job_part,
            start_job,
            add_model,
            forget_model,
            act,
            continue_form,
            *export_page_routes(),
            hold_queue,
            *chat_pages(),
            *plan_pages(),
        ],
    )


def _home(request: AnyRequest, service: Service, access: Access) -> HomePage:
    report = service.hardware.report()
    return HomePage(
        csrf_token=csrf_of(request, access),
        hardware=HardwareCards(
            report=report,
            findings=tuple(found for found in findings(report) if found.level != "ok"),
        ),
        models=service.catalogue.models(),
        datasets=service.catalogue.datasets(),
        jobs=service.jobs.list_jobs(),
        policy=service.policy.state(time.time()),
        defaults=JobRequest(model="", dataset=0),
    )


def _job(request: AnyRequest, service: Service, access: Access, job_id: int) -> JobPage:
    # Read before the rest, so that the live stream repeats an event rather than skips it.
    last_event_id = service.runlog.last_event_id()
    detail = job_detail(service, job_id)
    error = detail.job.error
    diverged = detail.job.state == "failed" and error is not None and error.code == "RUN-DIVERGED"
    measured = [row for row in detail.evaluations if row["split"] == "selection"]
    return JobPage(
        csrf_token=csrf_of(request, access),
        detail=detail,
        samples=_sample_pairs(detail),
        log=log_tail(service, job_id, _LOG_BYTES),
        eval_before=measured[0]["loss"] if measured else None,
        eval_now=measured[-1]["loss"] if len(measured) > 1 else None,
        last_event_id=last_event_id,
        rescuable=diverged and can_go_on(service.jobs, service.runlog, detail.job),
        continuable=service.continuing.can_continue(detail.job),
        datasets=service.catalogue.datasets() if detail.job.terminal else [],
        exports=exports_view(service, job_id),
    )


def _sample_pairs(detail: JobDetail) -> list[SamplePair]:
    """Pair each question's first answer (of the base) with its last, in the job's order."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for row in detail.samples:
        answers.setdefault(row["prompt"], []).append(row)
    order = {prompt: place for place, prompt in enumerate(detail.spec.eval.sample_prompts)}
    prompts = sorted(answers, key=lambda prompt: order.get(prompt, len(order)))
    return [
        SamplePair(
            prompt=prompt,
            before=answers[prompt][0]["answer"],
            after=answers[prompt][-1]["answer"] if len(answers[prompt]) > 1 else None,
        )
        for prompt in prompts
    ]


def _require_known(name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "There is no such part of the page.",
            why=f"known: {', '.join(known)}",
        )
