"""Chat completions and models as OpenAI's API has them, for programs that know that one."""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from litestar import Request, Router, get, post, route
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import Response, Stream

from slidepack.daemon.chat.contract import Answer, AskFailed, SessionRequest
from slidepack.daemon.chat.subjects import job_voice
from slidepack.daemon.service import Service
from slidepack.engine.chat.contract import BASE_VOICE
from slidepack.engine.chat.events import Done, Token
from slidepack.engine.contract.errors import CATALOGUE, ErrorReport, SlidepackError
from slidepack.web.answers import RunningAsk, begin_ask
from slidepack.web.chat_api import open_session
from slidepack.web.openai_errors import error_body, openai_handlers
from slidepack.web.openai_request import CompletionRequest, ask_request, parse_completion

__all__ = ["openai_router"]

AnyRequest = Request[Any, Any, Any]

_BASE: Final = "base:"
_LOADED: Final = "loaded"
_JOB: Final = re.compile(r"job-(\d{1,15})")
_BODY_BYTES: Final = 16 << 20
_CLIENT_GONE: Final = 499
"""For whom nobody is left to read it."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One name for the field `model`."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "slidepack"


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    object: str = "list"
    data: list[Model]


@dataclass(slots=True)
class _Collected:
    """An answer, as far as it has come."""

    texts: list[str] = field(default_factory=list)
    done: Done | None = None

    def add(self, answer: Answer | None) -> None:
        """Take what came.

        Raises:
            SlidepackError: the answer failed.
        """
        match answer:
            case Token():
                self.texts.append(answer.text)
            case AskFailed():
                raise SlidepackError.from_report(answer.error)
            case Done():
                if answer.error is not None:
                    raise SlidepackError.from_report(answer.error)
                self.done = answer


@get("/models")
async def list_models(service: Service) -> Models:
    """Return everything that can answer: base models, and results of completed jobs."""
    return Models(data=await asyncio.to_thread(_models, service))


@get("/models/{model:path}")
async def show_model(service: Service, model: FromPath[str]) -> Model:
    """Return one of them."""
    name = model.removeprefix("/")
    found = await asyncio.to_thread(_models, service)
    for known in found:
        if known.id == name:
            return known
    raise _no_model(name)


@post("/chat/completions", status_code=200, request_max_body_size=_BODY_BYTES)
async def complete(request: AnyRequest, service: Service) -> Response[Any] | Stream:
    """Answer a conversation; what the model's name needs is loaded first."""
    wanted = parse_completion(await request.body())
    session, voice = await asyncio.to_thread(_whom, service, wanted.model)
    asked = ask_request(wanted, voice)
    view = await open_session(service, session)
    running = await begin_ask(service, view.id, asked)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time())}
    head |= {"model": wanted.model}
    if not wanted.stream:
        return await _whole(request, running, head)
    answers = running.answers()
    # An error before the first word still has a status of its own.
    first = await anext(answers)
    while first is None:
        first = await anext(answers)
    collected = _Collected()
    collected.add(first)
    return Stream(_chunks(first, answers, head, wanted), media_type="text/event-stream")


@route("/{path:path}", http_method=["GET", "POST", "DELETE"])
async def unknown(path: FromPath[str]) -> None:
    """Refuse whatever else OpenAI has."""
    raise NotFoundException(detail=f"there is no {path}")


def openai_router() -> Router:
    """Return the routes below `/v1`."""
    return Router(
        path="/v1",
        route_handlers=[list_models, show_model, complete, unknown],
        exception_handlers=openai_handlers(),
        include_in_schema=False,
    )


async def _whole(request: AnyRequest, running: RunningAsk, head: dict[str, Any]) -> Response[Any]:
    reader = asyncio.create_task(_collect(running))
    gone = asyncio.create_task(_disconnected(request))
    await asyncio.wait({reader, gone}, return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if not reader.done():
        # Nobody waits for the answer any more.
        reader.cancel()
        await asyncio.wait({reader})
        return Response(b"", status_code=_CLIENT_GONE)
    collected = reader.result()
    assert collected.done is not None, "it has not failed"
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(collected.texts), "refusal": None},
        "logprobs": None,
        "finish_reason": _reason(collected.done),
    }
    body = head | {
        "object": "chat.completion",
        "choices": [choice],
        "usage": _usage(collected.done),
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _collect(running: RunningAsk) -> _Collected:
    collected = _Collected()
    async for answer in running.answers():
        collected.add(answer)
    return collected


async def _disconnected(request: AnyRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _chunks(
    first: Answer,
    rest: AsyncIterator[Answer | None],
    head: dict[str, Any],
    wanted: CompletionRequest,
) -> AsyncIterator[bytes]:
    """Yield a stream's events; an error ends it, as an event of its own."""
    head = head | {"object": "chat.completion.chunk"}
    # Where usage was asked for, every chunk has the field.
    usage: dict[str, Any] = {"usage": None} if wanted.includes_usage else {}
    yield _event(head | usage | _delta({"role": "assistant", "content": ""}))
    async for answer in _behind(first, rest):
        match answer:
            case None:
                yield b": alive\n\n"
            case Token():
                yield _event(head | usage | _delta({"content": answer.text}))
            case AskFailed():
                yield _failure(answer.error)
                return
            case Done() if answer.error is not None:
                yield _failure(answer.error)
                return
            case Done():
                yield _event(head | usage | _delta({}, _reason(answer)))
                if wanted.includes_usage:
                    yield _event(head | {"choices": [], "usage": _usage(answer)})
    yield b"data: [DONE]\n\n"


async def _behind(
    first: Answer, rest: AsyncIterator[Answer | None]
) -> AsyncIterator[Answer | None]:
    yield first
    async for answer in rest:
        yield answer


def _event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _failure(error: ErrorReport) -> bytes:
    return _event(error_body(error, CATALOGUE[error.code].http_status))


def _delta(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    return {"choices": [choice]}


def _reason(done: Done) -> str:
    return "length" if done.finish_reason == "length" else "stop"


def _usage(done: Done) -> dict[str, Any]:
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.new_tokens,
        "total_tokens": done.prompt_tokens + done.new_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
    }


def _models(service: Service) -> list[Model]:
    bases = [
        Model(id=f"{_BASE}{model.id}", created=int(model.created_at))
        for model in service.catalogue.models()
        if model.state == "ready"
    ]
    results = [
        Model(id=job_voice(job.id), created=int(job.ended_at or job.created_at))
        for job in service.jobs.list_jobs()
        if job.state == "completed" and job.result is not None
    ]
    return [*results, *bases]


def _whom(service: Service, name: str) -> tuple[SessionRequest, str]:
    """Return the chat that a model's name asks for, and the voice in it.

    Raises:
        SlidepackError: CHAT-VOICE-UNKNOWN.
    """
    job = _JOB.fullmatch(name)
    if job is not None:
        return SessionRequest(jobs=(int(job[1]),)), name
    model = name.removeprefix(_BASE)
    if any(known.id == model for known in service.catalogue.models()):
        return SessionRequest(model=model), BASE_VOICE
    if name == _LOADED:
        return _loaded(service)
    raise _no_model(name)


def _loaded(service: Service) -> tuple[SessionRequest, str]:
    for view in service.chats.views():
        if view.state in ("loading", "ready"):
            # Behind the base come the jobs.
            voice = view.voices[-1]
            if voice.job_id is not None:
                return SessionRequest(jobs=(voice.job_id,)), voice.name
            return _whom(service, view.model)
    raise SlidepackError(
        "CHAT-VOICE-UNKNOWN",
        "No model is loaded.",
        why="there is no chat now",
        fix="Name a model of /v1/models; it is loaded then.",
    )


def _no_model(name: str) -> SlidepackError:
    return SlidepackError(
        "CHAT-VOICE-UNKNOWN",
        f"There is no model {name!r}.",
        why="it is neither job-N, base:MODEL nor loaded",
        fix="See /v1/models for what there is.",
    )
