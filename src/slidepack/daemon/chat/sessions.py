"""All chats: who may begin where, and when they end."""

import logging
import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from slidepack.daemon.chat.contract import AskRequest, SessionRequest, SessionView
from slidepack.daemon.chat.known import Tell
from slidepack.daemon.chat.placing import Place, place
from slidepack.daemon.chat.process import end_orphans
from slidepack.daemon.chat.session import ChatSession
from slidepack.daemon.chat.starting import ChatStarter
from slidepack.daemon.chat.subjects import Subject, Subjects
from slidepack.daemon.hardware import DeviceNow, Waiting
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["ChatSessions", "Hold"]

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 30.0
"""For what a start needs to know first: the hardware, and who else uses the machine."""
_FREED_SECONDS: Final = 4.0
"""How long the memory that a chat took may still be shown as taken."""
_END_SECONDS: Final = 5.0
_MOST_ENDED: Final = 20
"""Of which one may still ask why they have ended."""


class Hold(Protocol):
    """The policy, for what is no job."""

    def why_wait(self, now: float, *, any_time: bool = False) -> str:
        """Return why nothing may begin now; empty where it may."""
        ...

    def why_leave(
        self, now: float, *, seconds_left: float | None = None, any_time: bool = False
    ) -> str:
        """Return why what runs must give way now; empty where it need not."""
        ...


@dataclass(slots=True, eq=False)
class _Wanted:
    """A chat that is to begin."""

    request: SessionRequest
    subject: Subject
    asked_at: float
    future: Future[SessionView] = field(default_factory=Future)


class ChatSessions:
    """Starts and ends chats. `tick` belongs to the supervisor's thread; any may call the rest.

    Only that thread gives devices away, to chats as to workers, so neither overtakes the other.
    """

    def __init__(
        self,
        *,
        subjects: Subjects,
        starter: ChatStarter,
        policy: Hold,
    ) -> None:
        """Bind what chats need.

        Args:
            subjects: finds whom a chat is with.
            starter: starts their processes.
            policy: says whether anything may run.
        """
        self._subjects = subjects
        self._starter = starter
        self._policy = policy
        self._root = starter.root
        self._idle_seconds = starter.idle_seconds
        self._changed = starter.changed
        self._monotonic = starter.monotonic
        self._lock = threading.Lock()
        self._sessions: dict[str, ChatSession] = {}
        self._ended: dict[str, ChatSession] = {}
        self._wanted: list[_Wanted] = []
        self._looked_at = self._freed_at = float("-inf")
        self._stopping = False

    def clean_up(self) -> None:
        """End what an earlier daemon left."""
        end_orphans(self._root)
        for folder in self._root.iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def open(self, request: SessionRequest) -> Future[SessionView]:
        """Return a chat with whom is asked for, once its process has been started.

        One that there is already is returned at once; adapters that it lacks are loaded. The
        future fails with CHAT-BUSY, CHAT-NO-ROOM, CHAT-HELD, CHAT-REQUEST-INVALID, or an error of
        the disk.

        Raises:
            SlidepackError: as `Subjects.of`.
        """
        wanted = _Wanted(request, self._subjects.of(request), self._monotonic())
        with self._lock:
            if self._stopping:
                raise _refused_by("the daemon stops")
            found = self._like(wanted)
            if found is None:
                self._wanted.append(wanted)
        if found is not None:
            found.load(wanted.subject.adapters)
            wanted.future.set_result(found.view())
        return wanted.future

    def views(self) -> list[SessionView]:
        """Return the chats that have not ended."""
        return [session.view() for session in self._all()]

    def get(self, session_id: str) -> SessionView:
        """Return a chat, or how it ended.

        Raises:
            SlidepackError: CHAT-NOT-FOUND.
        """
        return self._require(session_id).view()

    def ask(self, session_id: str, request: AskRequest, tell: Tell) -> str:
        """Ask voices of a chat (`ChatSession.ask`).

        Raises:
            SlidepackError: CHAT-NOT-FOUND, and as there.
        """
        return self._require(session_id).ask(request, tell)

    def stop_ask(self, session_id: str, ask_id: str) -> None:
        """End an ask; no matter if it is over.

        Raises:
            SlidepackError: CHAT-NOT-FOUND.
        """
        self._require(session_id).stop(ask_id)

    def end(self, session_id: str, why: str = "it was ended") -> None:
        """Let a chat end now.

        Raises:
            SlidepackError: CHAT-NOT-FOUND.
        """
        self._require(session_id).leave(why, now=True)

    def held(self) -> dict[str, str]:
        """Return the devices that chats hold, and why jobs wait for them."""
        return {
            session.device: f"a chat with {session.subject.title} uses {session.device}; it ends "
            f"{self._idle_seconds / 60:g} minutes after its last answer"
            for session in self._all()
        }

    def pids(self) -> list[int]:
        """Return the processes that run."""
        return [session.process.worker.pid for session in self._all()]

    def device_bytes(self) -> list[int]:
        """Return what each chat on a card takes of it."""
        return [session.device_bytes for session in self._all() if session.device != "cpu"]

    def wants_look(self) -> bool:
        """Return whether a chat waits until somebody has looked for games and other programs."""
        with self._lock:
            return bool(self._wanted)

    def looked(self) -> None:
        """Take note that somebody has looked."""
        self._looked_at = self._monotonic()

    def tick(self, now: float) -> None:
        """Do what is due: end chats, start those that are wanted.

        Args:
            now: unix seconds.
        """
        sessions = self._all()
        hold = self._policy.why_leave(now, any_time=True) if sessions else ""
        for session in sessions:
            session.look(hold)
            if session.ended:
                self._bury(session)
        with self._lock:
            waiting = list(self._wanted)
        for wanted in waiting:
            self._consider(wanted, now)

    def stop(self) -> None:
        """End all chats; answers that run are cut off."""
        with self._lock:
            self._stopping = True
            waiting, self._wanted = self._wanted, []
        for wanted in waiting:
            _resolve(wanted, _refused_by("the daemon stops"))
        sessions = self._all()
        for session in sessions:
            session.leave("the daemon stops", now=True)
        for session in sessions:
            session.process.wait(_END_SECONDS)
            shutil.rmtree(session.process.folder, ignore_errors=True)

    def _consider(self, wanted: _Wanted, now: float) -> None:
        """Start a chat, refuse it, or leave it for a later tick."""
        try:
            gone = wanted.future.cancelled()
            found: ChatSession | SlidepackError | None = None if gone else self._begin(wanted, now)
        except SlidepackError as error:
            found = error
        except Exception as error:
            logger.exception("A chat cannot be started")
            found = _failed_to_start(repr(error))
        if found is None and not wanted.future.cancelled():
            return
        with self._lock:
            if wanted in self._wanted:
                self._wanted.remove(wanted)
        if found is not None:
            _resolve(wanted, found)

    def _begin(self, wanted: _Wanted, now: float) -> ChatSession | None:
        """Return the chat; None where that has to wait for a moment.

        Raises:
            SlidepackError: it is refused.
        """
        with self._lock:
            found = self._like(wanted)
        if found is not None:
            found.load(wanted.subject.adapters)
            return found
        patient = self._monotonic() - wanted.asked_at < _PATIENCE_SECONDS
        if self._looked_at < wanted.asked_at and patient:
            return None
        why = self._policy.why_wait(now, any_time=True)
        if why:
            raise _refused_by(why)
        devices = self._starter.devices()
        if isinstance(devices, Waiting):
            if patient:
                return None
            raise _refused_by(devices.reason)
        return self._place(wanted, devices, patient=patient)

    def _place(
        self, wanted: _Wanted, devices: Sequence[DeviceNow], *, patient: bool
    ) -> ChatSession | None:
        taken = self._starter.taken(devices, self._all())
        try:
            found = place(wanted.subject, wanted.request.device, devices, taken)
        except SlidepackError as error:
            fresh = self._monotonic() - self._freed_at < _FREED_SECONDS
            if fresh and error.report.code == "CHAT-NO-ROOM":
                return None
            if patient and any(one.soon for one in taken.values()):
                return None
            raise
        if found.replaces:
            # It leaves first; a later tick finds its device free.
            self._require(found.replaces).leave(
                f"a chat with {wanted.subject.title} takes its place", now=True
            )
            return None
        return self._launch(wanted.subject, found)

    def _launch(self, subject: Subject, where: Place) -> ChatSession:
        session = self._starter.launch(subject, where)
        with self._lock:
            self._sessions[session.id] = session
        logger.info("A chat with %s begins on %s.", subject.title, session.device)
        self._changed()
        return session

    def _like(self, wanted: _Wanted) -> ChatSession | None:
        """Return the chat over the same model that there is; the caller holds the lock."""
        asked = wanted.request
        for session in self._sessions.values():
            same = session.subject.path == wanted.subject.path
            there = asked.device in ("auto", session.device)
            held = asked.precision in (None, session.subject.precision)
            if session.open and same and there and held:
                return session
        return None

    def _bury(self, session: ChatSession) -> None:
        with self._lock:
            self._sessions.pop(session.id, None)
            self._ended[session.id] = session
            while len(self._ended) > _MOST_ENDED:
                self._ended.pop(next(iter(self._ended)))
        self._freed_at = self._monotonic()
        view = session.view()
        logger.info("The chat with %s has ended: %s.", view.title, view.why.rstrip("."))
        if view.error is None:
            # Of one that failed the log stays until the daemon begins anew.
            shutil.rmtree(session.process.folder, ignore_errors=True)
        self._changed()

    def _all(self) -> list[ChatSession]:
        with self._lock:
            return list(self._sessions.values())

    def _require(self, session_id: str) -> ChatSession:
        with self._lock:
            found = self._sessions.get(session_id) or self._ended.get(session_id)
        if found is None:
            raise SlidepackError(
                "CHAT-NOT-FOUND",
                f"There is no chat {session_id!r}.",
                why="it ended long ago, or with an earlier daemon",
                fix="Begin a new one.",
            )
        return found


def _resolve(wanted: _Wanted, found: ChatSession | SlidepackError) -> None:
    if not wanted.future.set_running_or_notify_cancel():
        return
    if isinstance(found, SlidepackError):
        wanted.future.set_exception(found)
    else:
        wanted.future.set_result(found.view())


def _refused_by(why: str) -> SlidepackError:
    return SlidepackError(
        "CHAT-HELD",
        "No chat can begin now.",
        why=why.removeprefix("waits: "),
        fix="Ask again when that is over.",
    )


def _failed_to_start(why: str) -> SlidepackError:
    return SlidepackError(
        "CHAT-CRASHED",
        "The chat could not be started.",
        why=why,
        fix="The daemon's log has the details; ask again.",
    )
