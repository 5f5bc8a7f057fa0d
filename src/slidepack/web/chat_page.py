"""The page on which the result of a job is tried, its base beside it, or a model as it is."""

import asyncio
from typing import Annotated, Any, Final

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter
from litestar.response import Template

from slidepack.daemon.chat.subjects import job_voice
from slidepack.daemon.service import Service
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.chat.contract import BASE_VOICE
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import FullMethod
from slidepack.web.access import Access
from slidepack.web.contexts import ChatPage, ChatVoice
from slidepack.web.page_session import csrf_of

__all__ = ["chat_pages"]

AnyRequest = Request[Any, Any, Any]

_MOST_OTHERS: Final = 24


@get("/jobs/{job_id:int}/chat")
async def chat(
    request: AnyRequest,
    service: Service,
    access: Access,
    job_id: FromPath[int],
    beside: Annotated[str, QueryParameter(name="with")] = "",
) -> Template:
    """Show the chat with a completed job; `with` names others that are ticked too, as in 3,5."""
    others = {int(one) for one in beside.split(",") if one.isascii() and one.isdigit()}
    page = await asyncio.to_thread(_chat, request, service, access, job_id, others)
    return Template("chat.html", context={"page": page})


@get("/models/{model_id:str}/chat")
async def chat_with_model(
    request: AnyRequest, service: Service, access: Access, model_id: FromPath[str]
) -> Template:
    """Show the chat with a model as it is."""
    page = await asyncio.to_thread(_chat_with_model, request, service, access, model_id)
    return Template("chat.html", context={"page": page})


def chat_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [chat, chat_with_model]


def _chat(
    request: AnyRequest, service: Service, access: Access, job_id: int, beside: set[int]
) -> ChatPage:
    job, spec = service.jobs.get(job_id), service.jobs.spec(job_id)
    if not _is_done(job):
        raise SlidepackError(
            "RUN-NO-RESULT",
            f"Job {job_id} has nothing to try yet.",
            why=f"it is {job.state}",
            fix="Wait until it is completed.",
        )
    whole = isinstance(spec.method, FullMethod)
    voices = [_voice(job, ticked=True)]
    if not whole:
        base = spec.base.name or spec.base.model_id
        voices.insert(
            0, ChatVoice(name=BASE_VOICE, title=f"{base}, as it was", job_id=None, ticked=True)
        )
        others = _others(service, spec.base.content_hash, job.model_id, beside, job)
        voices += [_voice(other, ticked=other.id in beside) for other in others]
    return ChatPage(
        csrf_token=csrf_of(request, access),
        job=job,
        whole=whole,
        voices=voices,
        idle_minutes=service.settings.chat_idle_minutes,
    )


def _chat_with_model(
    request: AnyRequest, service: Service, access: Access, model_id: str
) -> ChatPage:
    model = service.catalogue.model(model_id)
    if model.state != "ready":
        raise SlidepackError(
            "MODEL-NOT-READY",
            f"The model {model_id} cannot answer yet.",
            why=f"its import is in state {model.state}",
            fix="Wait until it is ready.",
        )
    others = _others(service, model.content_hash, model.id, set())
    return ChatPage(
        csrf_token=csrf_of(request, access),
        job=None,
        whole=False,
        voices=[
            ChatVoice(name=BASE_VOICE, title=model.name, job_id=None, ticked=True),
            *(_voice(other, ticked=False) for other in others),
        ],
        idle_minutes=service.settings.chat_idle_minutes,
        model=model,
    )


def _others(
    service: Service,
    content_hash: str,
    model_id: str,
    beside: set[int],
    job: JobRecord | None = None,
) -> list[JobRecord]:
    """Return adapters over a base, but not a job's own: those asked for, of its sweep, the
    newest."""
    own = None if job is None else job.id
    sweep = None if job is None else job.sweep_id
    found = [
        other
        for other in service.jobs.list_jobs()
        if other.id != own and _is_done(other) and other.model_id == model_id
    ]
    found.sort(
        key=lambda one: (
            one.id not in beside,
            one.sweep_id is None or one.sweep_id != sweep,
            -one.id,
        )
    )
    same: list[JobRecord] = []
    for other in found:
        others = service.jobs.spec(other.id)
        if others.base.content_hash == content_hash and not isinstance(others.method, FullMethod):
            same.append(other)
        if len(same) == _MOST_OTHERS:
            break
    return same


def _is_done(job: JobRecord) -> bool:
    return job.state == "completed" and job.result is not None


def _voice(job: JobRecord, *, ticked: bool) -> ChatVoice:
    return ChatVoice(
        name=job_voice(job.id), title=f"Job {job.id}: {job.name}", job_id=job.id, ticked=ticked
    )
