"""Brings a chat's answers from its own thread to one coroutine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from slidepack.daemon.chat.contract import Answer, AskFailed, AskRequest
from slidepack.daemon.service import Service
from slidepack.engine.chat.events import Done
from slidepack.engine.contract.errors import ErrorReport, SlidepackError

__all__ = ["RunningAsk", "begin_ask"]

_LOOK_SECONDS: Final = 0.5
_KEEP_ALIVE_SECONDS: Final = 15.0


class RunningAsk:
    """An ask and what has come of it. Whoever stops to read it ends it."""

    def __init__(self, service: Service, session_id: str, request: AskRequest) -> None:
        """Begin to listen in the running loop; nothing is asked yet."""
        self.id = ""
        self._service = service
        self._session_id = session_id
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Queue[Answer] = asyncio.Queue()
        self._left = set(request.voices)

    async def start(self) -> None:
        """Ask.

        Raises:
            SlidepackError: as `ChatSessions.ask`.
        """
        self.id = await asyncio.to_thread(
            self._service.chats.ask, self._session_id, self._request, self._tell
        )

    async def answers(self) -> AsyncIterator[Answer | None]:
        """Yield what comes, up to the end of the last voice; None now and then in a silence."""
        silent = 0.0
        try:
            while self._left:
                answer = await self._next()
                silent = silent + _LOOK_SECONDS if answer is None else 0.0
                if answer is not None:
                    self._note(answer)
                    yield answer
                elif silent >= _KEEP_ALIVE_SECONDS:
                    silent = 0.0
                    yield None
        finally:
            if self._left:
                # Its reader is gone. One short line is written; nothing here may wait any more.
                with contextlib.suppress(SlidepackError):
                    self._service.chats.stop_ask(self._session_id, self.id)

    def _note(self, answer: Answer) -> None:
        if isinstance(answer, AskFailed):
            self._left.difference_update(answer.voices)
        elif isinstance(answer, Done):
            self._left.discard(answer.voice)

    async def _next(self) -> Answer | None:
        try:
            return await asyncio.wait_for(self._answers.get(), _LOOK_SECONDS)
        except TimeoutError:
            if not self._service.stopping.is_set():
                return None
            return AskFailed(voices=tuple(sorted(self._left)), error=_STOPPING)

    def _tell(self, answer: Answer) -> None:
        # Once the loop has ended nobody listens.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._answers.put_nowait, answer)


async def begin_ask(service: Service, session_id: str, request: AskRequest) -> RunningAsk:
    """Ask voices of a chat.

    Raises:
        SlidepackError: as `ChatSessions.ask`.
    """
    running = RunningAsk(service, session_id, request)
    await running.start()
    return running


_STOPPING: Final = ErrorReport(
    code="CHAT-ENDED",
    what="The chat has ended.",
    why="the daemon stops",
    fix="Ask again when it runs.",
)
