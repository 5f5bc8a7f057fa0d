"""What a chat is asked for, and what is told of it: the form of the API."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from slidepack.engine.chat.contract import Ask, Message, Sampling
from slidepack.engine.chat.events import Done, Token
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import Precision

__all__ = [
    "Answer",
    "AskFailed",
    "AskRequest",
    "SessionRequest",
    "SessionState",
    "SessionView",
    "VoiceView",
]

SessionState = Literal["loading", "ready", "leaving", "ended"]
_MOST_JOBS = 64

JobIds = Annotated[tuple[int, ...], msgspec.Meta(max_length=_MOST_JOBS)]


class SessionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Results of completed jobs, or a base model, that are to answer."""

    jobs: JobIds = ()
    """Adapters over one base, or one job that trained a whole model."""
    model: str = ""
    """Id of a base model; it may be left out where jobs name it."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda:N`."""
    precision: Precision | None = None
    """Of the base; None holds it as its jobs did."""

    def __post_init__(self) -> None:
        """Refuse what names nobody."""
        if not self.jobs and not self.model:
            raise ValueError("jobs and model are empty; name who is to answer")
        if len(set(self.jobs)) != len(self.jobs):
            raise ValueError(f"jobs {list(self.jobs)} names one twice")


class VoiceView(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who can be asked."""

    name: str
    """`base`, or `job-N`."""
    title: str
    """For people."""
    job_id: int | None = None
    state: Literal["loading", "ready", "failed"] = "loading"
    mean_difference: float | None = None
    """Mean |logit of the voice - logit of the base| over a fixed text; None of the base itself."""
    max_difference: float | None = None
    warning: str = ""
    error: ErrorReport | None = None
    """Why it could not be loaded."""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A chat as it stands."""

    id: str
    state: SessionState
    title: str
    """Whom it is with."""
    model: str
    """Id of the base, or `job-N` where a job trained all of it."""
    device: str
    voices: tuple[VoiceView, ...]
    done: int = 0
    total: int = 0
    """Layers that are loaded, and all of them; 0 before the first."""
    context: int | None = None
    """Most tokens of a conversation; None until it is ready."""
    seats: int | None = None
    """Answers that advance together."""
    weight_bytes: int | None = None
    """Memory of the base and the adapters that it began with."""
    cache_bytes: int | None = None
    """Memory of the conversations, at most."""
    precision: str = ""
    template: str = ""
    """Which chat template is used."""
    answering: int = 0
    """Asks that run."""
    idle_minutes: float
    """After its last answer it ends."""
    why: str = ""
    """Why it leaves, or has ended."""
    error: ErrorReport | None = None
    """What it failed of."""


class AskRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to voices of a chat; fields as in `engine.chat.contract.Ask`."""

    voices: tuple[str, ...]
    messages: tuple[Message, ...] = ()
    own: Mapping[str, tuple[Message, ...]] = {}
    """Messages of those voices whose conversation went another way; the others have `messages`."""
    tools: str = ""
    prompt: str | None = None
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a question to nobody, and a conversation of nobody."""
        if not self.voices:
            raise ValueError("voices is empty; name at least one")
        strangers = sorted(set(self.own) - set(self.voices))
        if strangers:
            raise ValueError(f"own names {strangers}, which are not among the voices")

    def asks(self, ask_id: str, engine_names: Mapping[str, str]) -> list[Ask]:
        """Return the engine's commands, one for each conversation.

        Args:
            ask_id: with which their ids begin.
            engine_names: what the engine calls the voices.

        Raises:
            SlidepackError: CHAT-COMMAND-INVALID.
        """
        groups: dict[tuple[Message, ...], list[str]] = {}
        for voice in self.voices:
            groups.setdefault(self.own.get(voice, self.messages), []).append(engine_names[voice])
        fields: dict[str, Any] = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if name not in ("voices", "messages", "own")
        }
        try:
            return [
                Ask(id=f"{ask_id}.{number}", voices=tuple(voices), messages=messages, **fields)
                for number, (messages, voices) in enumerate(groups.items())
            ]
        except ValueError as error:
            raise SlidepackError(
                "CHAT-COMMAND-INVALID",
                "The question cannot be asked.",
                why=str(error),
                fix="Change the value named.",
            ) from error


class AskFailed(msgspec.Struct, frozen=True, kw_only=True):
    """Answers that do not go on."""

    voices: tuple[str, ...]
    error: ErrorReport


Answer = Token | Done | AskFailed
"""What comes of an ask: pieces, and for each voice one `Done`, or an `AskFailed` that names it."""
