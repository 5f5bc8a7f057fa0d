"""One chat: its process, its voices, and the answers that run."""

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from slidepack.daemon.chat.contract import AskFailed, AskRequest, SessionView
from slidepack.daemon.chat.known import Asked, Known, Tell, crashed, ended, voice_view
from slidepack.daemon.chat.process import ChatProcess
from slidepack.daemon.chat.subjects import Adapter, Subject
from slidepack.engine.chat.contract import BASE_VOICE, LoadVoice, Stop, Voice
from slidepack.engine.chat.events import AnyEvent, Done, Failed, Ready, Token
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.memory_parts import DEVICE_CONTEXT_BYTES

__all__ = ["ChatSession"]

_LEAVE_SECONDS: Final = 12.0
"""After which a process that was asked to leave is killed: a card is to be free within 20 s."""


class ChatSession:
    """A process from its start to its end. Any thread may ask it."""

    def __init__(
        self,
        subject: Subject,
        device: str,
        process: ChatProcess,
        *,
        cap_bytes: int,
        idle_seconds: float,
        monotonic: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        """Follow a process that has been started with a subject.

        Args:
            subject: whom it is with.
            device: `cpu` or `cuda:N`.
            process: it.
            cap_bytes: of weights, adapters and cache.
            idle_seconds: after which it ends where nobody asks.
            monotonic: seconds by a clock that only goes forward.
            changed: called when there is something new to show.
        """
        self.id = secrets.token_hex(4)
        self.subject = subject
        self.device = device
        self.process = process
        self.cap_bytes = cap_bytes
        self._idle_seconds = idle_seconds
        self._monotonic = monotonic
        self._changed = changed
        self._lock = threading.Lock()
        self._known = Known(subject)
        self._used_at = monotonic()
        process.listen(self._on_event, self._on_end)

    @property
    def ended(self) -> bool:
        """Whether its process is gone."""
        return self._known.gone

    @property
    def open(self) -> bool:
        """Whether it may be asked."""
        return not self.ended and not self._known.why

    @property
    def idle(self) -> bool:
        """Whether no answer runs, and nothing is being loaded."""
        with self._lock:
            return not self._known.asked and self._known.ready is not None

    @property
    def device_bytes(self) -> int:
        """What it takes of its device, at most."""
        ready = self._known.ready
        taken = self.cap_bytes if ready is None else ready.weight_bytes + ready.cache_bytes
        return taken + (0 if self.device == "cpu" else DEVICE_CONTEXT_BYTES)

    def view(self) -> SessionView:
        """Return it as it stands."""
        with self._lock:
            known, subject = self._known, self.subject
            ready = known.ready
            return SessionView(
                id=self.id,
                state=known.state,
                title=subject.title,
                model=subject.model,
                device=self.device,
                voices=tuple(known.voices.values()),
                done=known.done,
                total=known.total,
                context=None if ready is None else ready.context,
                seats=None if ready is None else ready.seats,
                weight_bytes=None if ready is None else ready.weight_bytes,
                cache_bytes=None if ready is None else ready.cache_bytes,
                precision="" if ready is None else ready.precision,
                template="" if ready is None else ready.template,
                answering=len(known.asked),
                idle_minutes=self._idle_seconds / 60,
                why=known.why,
                error=known.error,
            )

    def load(self, adapters: Sequence[Adapter]) -> None:
        """Load adapters that are not there yet; a chat that is about to be used is not idle."""
        with self._lock:
            self._used_at = self._monotonic()
            voices = self._known.voices
            # Found and noted at once: two who ask for the same one would both send for it.
            missing = [
                one
                for one in adapters
                if one.name not in voices or voices[one.name].state == "failed"
            ]
            for adapter in missing:
                voices[adapter.name] = voice_view(adapter)
        for adapter in missing:
            voice = Voice(name=adapter.name, folder=str(adapter.folder))
            self.process.send(LoadVoice(voice=voice))
        if missing:
            self._changed()

    def ask(self, request: AskRequest, tell: Tell) -> str:
        """Ask, and return by what name the ask can be stopped.

        Args:
            request: the question.
            tell: takes the answers.

        Raises:
            SlidepackError: CHAT-ENDED; CHAT-VOICE-UNKNOWN, or why a voice could not be loaded;
                CHAT-COMMAND-INVALID.
        """
        ask_id = secrets.token_hex(8)
        commands = request.asks(ask_id, {name: self._voice(name) for name in request.voices})
        with self._lock:
            self._require_open()
            for command in commands:
                self._known.asked[command.id] = Asked(ask_id, tell, set(command.voices))
        for command in commands:
            self.process.send(command)
        self._changed()
        return ask_id

    def stop(self, ask_id: str) -> None:
        """End an ask; no matter if it is over."""
        with self._lock:
            found = [key for key, one in self._known.asked.items() if one.ask_id == ask_id]
            for key in found:
                self._known.asked[key].stopped = True
        for key in found:
            self.process.send(Stop(id=key))

    def leave(self, why: str, *, now: bool = False) -> None:
        """Let the process end; the first reason stays.

        Args:
            why: as one clause.
            now: answers that run are cut off, as when somebody needs the card.
        """
        with self._lock:
            if self._known.gone:
                return
            first = not self._known.why
            if first:
                self._known.why = why
        if now:
            self.process.worker.terminate()
        if first:
            self.process.close()
            self._changed()

    def look(self, hold: str) -> None:
        """Do what is due.

        Args:
            hold: why nothing of ours may run now; empty where it may.
        """
        if hold:
            self.leave(hold, now=True)
        elif self.open and self._idle_for() >= self._idle_seconds:
            self.leave(f"nobody asked anything for {self._idle_seconds / 60:g} minutes", now=True)
        elif not self.open and not self.ended:
            # The end of the commands is told too; a process that is stuck may not see it.
            self.process.worker.terminate()
        if self.process.worker.seconds_since_terminated() > _LEAVE_SECONDS:
            self.process.worker.kill()

    def _idle_for(self) -> float:
        with self._lock:
            busy = bool(self._known.asked) or self._known.ready is None
            if busy:
                self._used_at = self._monotonic()
            return self._monotonic() - self._used_at

    def _voice(self, name: str) -> str:
        with self._lock:
            known = self._known.voices.get(name)
            names = ", ".join(self._known.voices)
        if known is None:
            raise SlidepackError(
                "CHAT-VOICE-UNKNOWN",
                f"There is no voice {name!r}.",
                why=f"this chat has: {names}",
                fix="Begin a chat that names it, or ask one of these.",
            )
        if known.error is not None:
            raise SlidepackError.from_report(known.error)
        # A whole model's own voice is the base in its process.
        return BASE_VOICE if name == self.subject.bare else name

    def _require_open(self) -> None:
        known = self._known
        if known.gone or known.why:
            raise SlidepackError.from_report(known.error or ended(known.why))

    def _on_event(self, event: AnyEvent) -> None:
        match event:
            case Token():
                self._tell(event)
            case Done():
                self._on_done(event)
            case Failed() if event.id:
                self._fail([event.id], event.error)
            case _:
                self._note(event)
                self._changed()

    def _note(self, event: AnyEvent) -> None:
        with self._lock:
            self._known.note(event)
            if isinstance(event, Ready):
                self._used_at = self._monotonic()

    def _named(self, event: Token | Done, asked: Asked) -> Token | Done:
        """Return an event with the names that its user knows."""
        return msgspec.structs.replace(
            event, id=asked.ask_id, voice=_users_voice(event.voice, self.subject)
        )

    def _on_done(self, event: Done) -> None:
        with self._lock:
            asked, why = self._known.asked.get(event.id), self._known.why
            if asked is None:
                return
            asked.voices.discard(event.voice)
            over = not asked.voices
            if over:
                del self._known.asked[event.id]
                self._used_at = self._monotonic()
            cut = event.finish_reason == "stopped" and not asked.stopped and bool(why)
            if cut:
                event = msgspec.structs.replace(event, finish_reason="error", error=ended(why))
        asked.tell(self._named(event, asked))
        if over:
            self._changed()

    def _tell(self, event: Token) -> None:
        with self._lock:
            asked = self._known.asked.get(event.id)
        if asked is not None:
            asked.tell(self._named(event, asked))

    def _fail(self, keys: Sequence[str], error: ErrorReport) -> None:
        with self._lock:
            found = [self._known.asked.pop(key, None) for key in keys]
            self._used_at = self._monotonic()
        for asked in found:
            if asked is not None:
                voices = sorted(_users_voice(voice, self.subject) for voice in asked.voices)
                asked.tell(AskFailed(voices=tuple(voices), error=error))
        self._changed()

    def _on_end(self, exit_code: int, last_line: str) -> None:
        with self._lock:
            known = self._known
            if known.error is None and not known.why:
                known.error = crashed(exit_code, last_line, self.process.folder)
            known.why = known.why or (known.error.what if known.error else "")
            known.gone = True
            running, error = list(known.asked), known.error or ended(known.why)
        self._fail(running, error)


def _users_voice(name: str, subject: Subject) -> str:
    return subject.bare if name == BASE_VOICE else name
