"""The chat routes of the REST API."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
from litestar import delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import ServerSentEvent
from litestar.response.sse import ServerSentEventMessage

from slidepack.daemon.chat.contract import AskFailed, AskRequest, SessionRequest, SessionView
from slidepack.daemon.service import Service
from slidepack.engine.chat.events import Token
from slidepack.web.answers import RunningAsk, begin_ask

__all__ = ["chat_routes", "open_session"]


async def open_session(service: Service, request: SessionRequest) -> SessionView:
    """Return a chat with whom is asked for, once its process has been started.

    Raises:
        SlidepackError: as `ChatSessions.open`.
    """
    return await asyncio.wrap_future(await asyncio.to_thread(service.chats.open, request))


@post("/chat/sessions")
async def begin_session(service: Service, data: SessionRequest) -> SessionView:
    """Begin a chat, or return the one that there is; the model may still be loading."""
    return await open_session(service, data)


@get("/chat/sessions")
async def list_sessions(service: Service) -> list[SessionView]:
    """Return the chats that have not ended."""
    return await asyncio.to_thread(service.chats.views)


@get("/chat/sessions/{session_id:str}")
async def show_session(service: Service, session_id: FromPath[str]) -> SessionView:
    """Return a chat, or for a while how it ended."""
    return await asyncio.to_thread(service.chats.get, session_id)


@delete("/chat/sessions/{session_id:str}")
async def end_session(service: Service, session_id: FromPath[str]) -> None:
    """End a chat at once."""
    await asyncio.to_thread(service.chats.end, session_id)


@post("/chat/sessions/{session_id:str}/asks", status_code=200)
async def ask_session(
    service: Service, session_id: FromPath[str], data: AskRequest
) -> ServerSentEvent:
    """Stream the answers of some voices: `asked`, then `token`s and one `done` of each.

    `failed` names voices whose answers do not go on, and why.
    """
    running = await begin_ask(service, session_id, data)
    return ServerSentEvent(_messages(running))


@delete("/chat/sessions/{session_id:str}/asks/{ask_id:str}")
async def stop_ask(service: Service, session_id: FromPath[str], ask_id: FromPath[str]) -> None:
    """End an ask; its voices are `done` as `stopped`."""
    await asyncio.to_thread(service.chats.stop_ask, session_id, ask_id)


def chat_routes() -> list[HTTPRouteHandler]:
    """Return the routes below `/chat`."""
    return [begin_session, list_sessions, show_session, end_session, ask_session, stop_ask]


async def _messages(running: RunningAsk) -> AsyncIterator[ServerSentEventMessage]:
    yield ServerSentEventMessage(data=_json({"id": running.id}), event="asked")
    async for answer in running.answers():
        match answer:
            case None:
                yield ServerSentEventMessage(data=None, comment="alive")
            case Token():
                piece = {"voice": answer.voice, "text": answer.text}
                yield ServerSentEventMessage(data=_json(piece), event="token")
            case AskFailed():
                yield ServerSentEventMessage(data=_json(answer), event="failed")
            case _:
                yield ServerSentEventMessage(data=_json(answer), event="done")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
