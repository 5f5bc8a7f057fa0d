"""What a chat process is started with, and told. Torch-free.

The process is started with a `ChatRequest` file. Commands come as JSON lines on its standard input,
events (`engine.chat.events`) leave as JSON lines on its standard output. Every `ask` that is taken
on gives exactly one `done` for each of its voices; one that is refused as a whole gives a single
`failed` with its id.
"""

from pathlib import Path, PurePath
from typing import Annotated, Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import Frozen, Precision
from slidepack.engine.data.rows import Role, Turn

__all__ = [
    "BASE_VOICE",
    "MOST_LINE_BYTES",
    "AnyCommand",
    "Ask",
    "ChatRequest",
    "LoadVoice",
    "Message",
    "Quit",
    "Sampling",
    "Stop",
    "UnloadVoice",
    "Voice",
    "decode_command",
    "encode_command",
    "id_of",
    "read_request",
]

BASE_VOICE: Final = "base"
"""The model without an adapter; it is always there."""
MOST_LINE_BYTES: Final = 16 << 20
"""Of a command; a longer line is refused, and read past."""
_MOST_STOPS: Final = 16

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_list(name: str, text: str) -> None:
    """Refuse a text that is neither empty nor a JSON list."""
    if not text:
        return
    try:
        msgspec.json.decode(text, type=list)
    except msgspec.DecodeError as error:
        raise ValueError(f"{name} is no JSON list: {error}") from error


class Voice(Frozen, frozen=True, kw_only=True):
    """An adapter under a name."""

    name: Name
    folder: str
    """Absolute path of its PEFT folder."""
    content_hash: str = ""
    """sha256, in hex, of its `adapter_model.safetensors`; empty where nobody knows it."""

    def __post_init__(self) -> None:
        """Refuse the base's name, and what is no folder."""
        _require(self.name != BASE_VOICE, f"the name {BASE_VOICE} is the bare model's")
        _require(PurePath(self.folder).is_absolute(), f"folder is {self.folder!r}; use its path")


class ChatRequest(Frozen, frozen=True, kw_only=True):
    """What a chat process begins with."""

    model: str
    """Absolute path of a Hugging Face folder: a base model, or one that was fully fine-tuned."""
    content_hash: str = ""
    """Of the model, as the importer writes it; empty or `-` where nobody knows it."""
    voices: tuple[Voice, ...] = ()
    """Loaded before the process is ready; one that cannot be loaded is told and left out."""
    device: str = "cpu"
    """`cpu` or `cuda:N`."""
    precision: Precision = "auto"
    """Of the base, as in `LoraMethod.base_precision`."""
    threads: int = 1
    """Of torch on the CPU."""
    context: int = 4096
    """Most tokens of a conversation, the answer among them; the model's own limit and the memory
    may make it less, and `ready` tells."""
    seats: int = 8
    """Answers that advance together; more wait for a seat. Memory may make it less."""
    memory_cap_bytes: int = 0
    """Of weights, adapters and cache on the device; 0 sets none."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        _require(PurePath(self.model).is_absolute(), f"model is {self.model!r}; use its path")
        names = [voice.name for voice in self.voices]
        _require(len(set(names)) == len(names), f"voices {names} are not all different")
        _require(self.threads >= 1, f"threads is {self.threads}; use 1 or more")
        _require(self.context >= 16, f"context is {self.context}; use 16 or more")
        _require(1 <= self.seats <= 256, f"seats is {self.seats}; use 1 to 256")
        _require(self.memory_cap_bytes >= 0, "memory_cap_bytes is below 0")


class Message(Frozen, frozen=True, kw_only=True):
    """One turn of a conversation."""

    role: Role
    content: str
    reasoning: str = ""
    """What an assistant thought before it answered."""
    tool_calls: str = ""
    """JSON list of the calls that an assistant made, as OpenAI writes them."""
    tool_call_id: str = ""
    name: str = ""
    """Of the tool that answers."""

    def __post_init__(self) -> None:
        """Refuse calls that are no list."""
        _require_list("tool_calls", self.tool_calls)

    @property
    def turn(self) -> Turn:
        """The same as training's rows have it."""
        return Turn(
            role=self.role,
            content=self.content,
            reasoning=self.reasoning,
            tool_calls=self.tool_calls,
            tool_call_id=self.tool_call_id,
            name=self.name,
        )


class Sampling(Frozen, frozen=True, kw_only=True):
    """How the next token is chosen; the filters work in the order of transformers."""

    seed: int = 0
    """All voices of an ask draw the same random numbers."""
    temperature: float = 0.0
    """0 takes the most likely token."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values out of range; no number passes a comparison that NaN would."""
        _require(0 <= self.seed < 1 << 64, f"seed is {self.seed}; use 0 to 2^64 - 1")
        _require(0.0 <= self.temperature <= 100.0, f"temperature is {self.temperature}; use 0..100")
        _require(0.0 < self.top_p <= 1.0, f"top_p is {self.top_p}; use above 0 to 1")
        _require(self.top_k >= 0, f"top_k is {self.top_k}; use 0 or more")
        _require(0.0 <= self.min_p <= 1.0, f"min_p is {self.min_p}; use 0 to 1")
        _require(
            0.0 < self.repetition_penalty <= 100.0,
            f"repetition_penalty is {self.repetition_penalty}; use above 0, 1 for none",
        )


class Command(Frozen, frozen=True, kw_only=True, tag_field="type"):
    """A line of standard input."""


class Ask(Command, frozen=True, kw_only=True, tag="ask"):
    """Answer a conversation, or go on with a text, by one voice or several at once."""

    id: Name
    """The caller's; free again once all voices are done."""
    voices: tuple[Name, ...] = (BASE_VOICE,)
    messages: tuple[Message, ...] = ()
    tools: str = ""
    """JSON list of the tools that the model may call."""
    prompt: str | None = None
    """A text to go on with, in place of messages: no template is applied."""
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    """None leaves the answer the rest of the context."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it."""
    ignore_ends: bool = False
    """Go on past the tokens that end a turn; for measurements."""

    def __post_init__(self) -> None:
        """Refuse what asks nothing."""
        _require(bool(self.voices), "voices is empty; name at least one")
        _require(len(set(self.voices)) == len(self.voices), "voices names one twice")
        _require((self.prompt is None) == bool(self.messages), "give either messages or a prompt")
        _require_list("tools", self.tools)
        _require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens is below 1")
        _require(all(self.stop), "a stop string is empty")
        _require(len(self.stop) <= _MOST_STOPS, f"more than {_MOST_STOPS} stop strings")


class Stop(Command, frozen=True, kw_only=True, tag="stop"):
    """End an ask at the next token; its voices are `done` as `stopped`. No matter if it is over."""

    id: Name


class LoadVoice(Command, frozen=True, kw_only=True, tag="load"):
    """Load an adapter; the base stays. Answers that run go on."""

    voice: Voice


class UnloadVoice(Command, frozen=True, kw_only=True, tag="unload"):
    """Forget an adapter; its answers that run end as `stopped`."""

    name: Name


class Quit(Command, frozen=True, kw_only=True, tag="quit"):
    """End the process; what runs is `stopped`. The end of standard input says the same."""


AnyCommand = Ask | Stop | LoadVoice | UnloadVoice | Quit


_commands = msgspec.json.Decoder(AnyCommand)
_encoder = msgspec.json.Encoder()


class _Addressed(msgspec.Struct):
    """The part of a line that says which ask it is about."""

    id: str = ""


_addressed = msgspec.json.Decoder(_Addressed)


def encode_command(command: AnyCommand) -> bytes:
    """Return the command as one line of JSON, newline included."""
    return _encoder.encode(command) + b"\n"


def decode_command(line: bytes) -> AnyCommand:
    """Parse one line.

    Raises:
        SlidepackError: CHAT-COMMAND-INVALID: it is not a command of this version.
    """
    try:
        return _commands.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SlidepackError(
            "CHAT-COMMAND-INVALID",
            "The line is not a command of this version.",
            why=str(error),
            fix="Send one JSON object a line, with a type and its own fields only.",
        ) from error


def id_of(line: bytes) -> str:
    """Return the id that a refused line names, or "" where none can be read."""
    try:
        return _addressed.decode(line).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def read_request(path: Path) -> ChatRequest:
    """Return the request in a file.

    Raises:
        SlidepackError: CHAT-REQUEST-INVALID.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=ChatRequest)
    except (OSError, msgspec.DecodeError) as error:
        raise SlidepackError(
            "CHAT-REQUEST-INVALID",
            "The chat cannot be started.",
            why=f"{path.name}: {error}",
            fix="Start it again; if it stays, that is a defect worth reporting.",
        ) from error
