"""Requests of OpenAI's chat completions, as a chat takes them. What it does not is refused."""

import re
import secrets
from typing import Any, Final, Literal

import msgspec

from slidepack.daemon.chat.contract import AskRequest
from slidepack.engine.chat.contract import Message, Sampling
from slidepack.engine.data.rows import Role
from slidepack.web.openai_errors import FieldError

__all__ = ["CompletionRequest", "ask_request", "parse_completion"]

_SEEDS: Final = 1 << 64
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
}
"""Fields that are taken with these values alone, which ask for nothing."""
_HARMLESS: Final = frozenset(
    {
        *("user", "metadata", "service_tier", "parallel_tool_calls"),
        *("safety_identifier", "prompt_cache_key"),
    }
)
"""Fields that change no answer here, whatever they say."""
_NAMED: Final = re.compile(r"`\$\.?([^`]*)`|unknown field `([^`]*)`|required field `([^`]*)`")


class _Part(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class _StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that count."""

    model: str
    messages: list[_Message]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    top_k: int | None = None
    """This and the next two are not OpenAI's own; other servers have them by these names."""
    min_p: float | None = None
    repetition_penalty: float | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the tokens that were used."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def parse_completion(body: bytes) -> CompletionRequest:
    """Read a request.

    Raises:
        FieldError: a field is unknown, unsupported or of another type.
    """
    try:
        given = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FieldError("body", str(error)) from error
    for name, neutral in _NEUTRAL.items():
        if given.get(name) is not None and given[name] not in neutral:
            shown = " or ".join(msgspec.json.encode(value).decode() for value in neutral)
            raise FieldError(name, f"Slidepack supports {shown} alone")
    counts = {
        name: value
        for name, value in given.items()
        if name not in _NEUTRAL and name not in _HARMLESS
    }
    try:
        return msgspec.convert(counts, CompletionRequest)
    except msgspec.ValidationError as error:
        found = _NAMED.search(str(error))
        param = next((part for part in found.groups() if part), "body") if found else "body"
        raise FieldError(param, str(error)) from error


def ask_request(request: CompletionRequest, voice: str) -> AskRequest:
    """Return what a chat is asked.

    Args:
        request: as it came.
        voice: that answers.

    Raises:
        FieldError: a value is out of range, or a message has a part that is no text.
    """
    most = request.max_completion_tokens
    if most is None:
        most = request.max_tokens
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return AskRequest(
        voices=(voice,),
        messages=tuple(_message(place, one) for place, one in enumerate(request.messages)),
        sampling=_sampling(request),
        max_tokens=most,
        stop=tuple(stop),
    )


def _sampling(request: CompletionRequest) -> Sampling:
    seed = secrets.randbelow(_SEEDS) if request.seed is None else request.seed % _SEEDS
    given = {
        name: getattr(request, name)
        for name in ("top_p", "top_k", "min_p", "repetition_penalty")
        if getattr(request, name) is not None
    }
    # OpenAI's own default; 0 is greedy.
    temperature = 1.0 if request.temperature is None else request.temperature
    try:
        return Sampling(seed=seed, temperature=temperature, **given)
    except ValueError as error:
        raise FieldError(str(error).partition(" ")[0], str(error)) from error


def _message(place: int, given: _Message) -> Message:
    role: Role = "system" if given.role == "developer" else given.role
    return Message(
        role=role,
        content=_text(place, given),
        reasoning=given.reasoning_content or "",
        tool_calls=msgspec.json.encode(given.tool_calls).decode() if given.tool_calls else "",
        tool_call_id=given.tool_call_id or "",
        name=(given.name or "") if role == "tool" else "",
    )


def _text(place: int, given: _Message) -> str:
    if given.content is None or isinstance(given.content, str):
        return given.content or ""
    others = [part.type for part in given.content if part.type != "text"]
    if others:
        raise FieldError(
            f"messages[{place}].content",
            f"it has a part of type {others[0]}, and only text is read",
        )
    return "".join(part.text or "" for part in given.content)
