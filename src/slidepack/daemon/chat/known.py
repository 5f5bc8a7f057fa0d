"""What is known of a chat: its voices, the asks that run, and how it ends.

Whoever owns it holds the lock.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from slidepack.daemon.chat.contract import Answer, SessionState, VoiceView
from slidepack.daemon.chat.subjects import Adapter, Subject
from slidepack.engine.chat.events import (
    AnyEvent,
    Failed,
    Loading,
    Ready,
    VoiceLoaded,
    Warned,
)
from slidepack.engine.contract.errors import ErrorReport

__all__ = ["Asked", "Known", "Tell", "crashed", "ended", "voice_view"]

Tell = Callable[[Answer], None]
"""Takes what comes of an ask; called by the chat's own thread, so it must not wait."""


@dataclass(slots=True)
class Asked:
    """An ask of the process that runs."""

    ask_id: str
    """The one that its user knows; it may have others beside it."""
    tell: Tell
    voices: set[str]
    """The engine's names of those that are not done."""
    stopped: bool = False
    """Whether its user wanted it to end."""


@dataclass(slots=True)
class Known:
    """All that changes of a chat."""

    subject: Subject
    voices: dict[str, VoiceView] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    """By the ids that the process knows."""
    done: int = 0
    total: int = 0
    """Layers that are loaded, and all of them."""
    ready: Ready | None = None
    why: str = ""
    """Why it leaves, or has ended; empty as long as it may be asked."""
    error: ErrorReport | None = None
    """What it failed of."""
    gone: bool = False
    """Whether its process has ended."""

    def __post_init__(self) -> None:
        """Begin with the voices that the process begins with."""
        bare = self.subject.bare
        self.voices[bare] = VoiceView(name=bare, title=self.subject.bare_title)
        self.voices |= {one.name: voice_view(one) for one in self.subject.adapters}

    @property
    def state(self) -> SessionState:
        """In one word."""
        if self.gone:
            return "ended"
        if self.why:
            return "leaving"
        return "loading" if self.ready is None else "ready"

    def note(self, event: AnyEvent) -> None:
        """Take in what the process told of itself and of its voices."""
        match event:
            case Loading():
                self.done, self.total = event.done, event.total
            case Ready():
                self.ready, self.done = event, self.total
                self._change(self.subject.bare, state="ready")
            case VoiceLoaded():
                self._change(
                    event.voice,
                    state="ready",
                    mean_difference=event.mean_difference,
                    max_difference=event.max_difference,
                )
            case Warned() if event.voice:
                self._change(event.voice, warning=event.message)
            case Failed() if event.voice:
                self._change(event.voice, state="failed", error=event.error)
            case Failed() if event.fatal:
                self.error = event.error

    def _change(self, name: str, **changes: object) -> None:
        view = self.voices.get(name)
        if view is not None:
            self.voices[name] = msgspec.structs.replace(view, **changes)


def voice_view(adapter: Adapter) -> VoiceView:
    """Return the voice of an adapter that is being loaded."""
    return VoiceView(name=adapter.name, title=adapter.title, job_id=adapter.job_id)


def ended(why: str) -> ErrorReport:
    """Return what is told of an ask whose chat has ended."""
    return ErrorReport(
        code="CHAT-ENDED",
        what="The chat has ended.",
        why=why,
        fix="Ask again: it begins anew where its device is free.",
    )


def crashed(exit_code: int, last_line: str, folder: Path) -> ErrorReport:
    """Return what is told of a process that ended by itself.

    Args:
        exit_code: of it; negative for a signal.
        last_line: of its log.
        folder: where that log is.
    """
    how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return ErrorReport(
        code="CHAT-CRASHED",
        what="The chat's process has died.",
        why=f"{how}; the last line of {folder / 'chat.log'}: {last_line}",
        fix="Ask again: it begins anew.",
    )
