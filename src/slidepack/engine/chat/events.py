"""Events of a chat process: what leaves its standard output, one JSON object a line. Torch-free."""

from typing import Literal

import msgspec

from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.contract.job import Frozen

__all__ = [
    "AnyEvent",
    "Done",
    "Failed",
    "FinishReason",
    "Loading",
    "Ready",
    "Token",
    "VoiceLoaded",
    "VoiceUnloaded",
    "Warned",
    "decode_event",
    "encode_event",
]

FinishReason = Literal["stop", "length", "stopped", "error"]
"""`stop`: the model ended its turn, or wrote a stop string. `length`: it reached `max_tokens` or
the context's end. `stopped`: it was told to."""


class Event(Frozen, frozen=True, kw_only=True, tag_field="type"):
    """A line of standard output."""


class Loading(Event, frozen=True, kw_only=True, tag="loading"):
    """Layers of the base that are loaded."""

    done: int
    total: int


class Ready(Event, frozen=True, kw_only=True, tag="ready"):
    """Commands are answered from here on."""

    seconds: float
    """Since the process began."""
    weight_bytes: int
    cache_bytes: int
    """That the cache may grow to; on a card it is taken at once."""
    context: int
    """Most tokens of a conversation."""
    seats: int
    """Answers that advance together."""
    device: str
    precision: str
    template: str
    """Which chat template: the model's own, or which one stands in; `none` where there is none."""


class Token(Event, frozen=True, kw_only=True, tag="token"):
    """A piece of an answer: whole characters, seldom none or several tokens of them."""

    id: str
    voice: str
    text: str


class Done(Event, frozen=True, kw_only=True, tag="done"):
    """A voice's answer is over."""

    id: str
    voice: str
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, those that were in the cache already."""
    new_tokens: int
    """The one that ended the turn among them."""
    tokens_per_second: float
    """Of those behind the first."""
    first_token_seconds: float | None
    """From when the ask was read to the first token; None where there was none."""
    error: ErrorReport | None = None
    """Of finish reason `error`."""


class VoiceLoaded(Event, frozen=True, kw_only=True, tag="voice_loaded"):
    """An adapter is there; the differences prove that it does something."""

    voice: str
    mean_difference: float
    """Mean |logit of the voice - logit of the base| over a fixed text."""
    max_difference: float
    seconds: float
    num_bytes: int


class VoiceUnloaded(Event, frozen=True, kw_only=True, tag="voice_unloaded"):
    """An adapter is gone."""

    voice: str


class Warned(Event, frozen=True, kw_only=True, tag="warning"):
    """Something the user should know that stops nothing."""

    code: str
    message: str
    voice: str = ""


class Failed(Event, frozen=True, kw_only=True, tag="failed"):
    """A command was refused, or the process cannot go on."""

    error: ErrorReport
    id: str = ""
    """Of the ask, where it is known."""
    voice: str = ""
    """That could not be loaded or unloaded."""
    fatal: bool = False
    """The process ends with the error's exit code."""


AnyEvent = Loading | Ready | Token | Done | VoiceLoaded | VoiceUnloaded | Warned | Failed

_decoder = msgspec.json.Decoder(AnyEvent)
_encoder = msgspec.json.Encoder()


def encode_event(event: AnyEvent) -> bytes:
    """Return the event as one line of JSON, newline included."""
    return _encoder.encode(event) + b"\n"


def decode_event(line: bytes) -> AnyEvent:
    """Parse one line.

    Raises:
        msgspec.DecodeError: it is not an event of this version.
    """
    return _decoder.decode(line)
