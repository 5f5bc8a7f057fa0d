"""The page on which the result of a job is tried, its base beside it."""

import asyncio
from typing import Any, Final

from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Template

from slidepack.daemon.chat.subjects import job_voice
from slidepack.daemon.service import Service
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.chat.contract import BASE_VOICE
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import FullMethod, JobSpec
from slidepack.web.access import Access
from slidepack.web.contexts import ChatPage, ChatVoice
from slidepack.web.page_session import csrf_of

__all__ = ["chat_pages"]

AnyRequest = Request[Any, Any, Any]

_MOST_OTHERS: Final = 24


@get("/jobs/{job_id:int}/chat")
async def chat(
    request: AnyRequest, service: Service, access: Access, job_id: FromPath[int]
) -> Template:
    """Show the chat with a completed job."""
    page = await asyncio.to_thread(_chat, request, service, access, job_id)
    return Template("chat.html", context={"page": page})


def chat_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [chat]


def _chat(request: AnyRequest, service: Service, access: Access, job_id: int) -> ChatPage:
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
        voices += [_voice(other, ticked=False) for other in _others(service, job, spec)]
    return ChatPage(
        csrf_token=csrf_of(request, access),
        job=job,
        whole=whole,
        voices=voices,
        idle_minutes=service.settings.chat_idle_minutes,
    )


def _others(service: Service, job: JobRecord, spec: JobSpec) -> list[JobRecord]:
    """Return the newest other adapters over the same base, those of the job's sweep first."""
    found = [
        other
        for other in service.jobs.list_jobs()
        if other.id != job.id and _is_done(other) and other.model_id == job.model_id
    ]
    found.sort(key=lambda one: (one.sweep_id is None or one.sweep_id != job.sweep_id, -one.id))
    same: list[JobRecord] = []
    for other in found:
        others = service.jobs.spec(other.id)
        fits = others.base.content_hash == spec.base.content_hash
        if fits and not isinstance(others.method, FullMethod):
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
