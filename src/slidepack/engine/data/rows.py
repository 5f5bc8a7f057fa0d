"""The canonical row: what every accepted format is normalised to, one JSON object a line."""

import re
import reprlib
from typing import Final, Literal

import msgspec

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CONTROLS: Final = dict.fromkeys([*range(32), *range(127, 160)], "\ufffd")
_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60

Role = Literal["system", "user", "assistant", "tool"]
Format = Literal["chat", "alpaca", "completion"]

FORMATS: Final[tuple[Format, ...]] = ("chat", "alpaca", "completion")


class Number(msgspec.Struct, frozen=True):
    """A number of a data file, kept as it is written, however long: `1.50` stays `1.50`."""

    text: str

    def __repr__(self) -> str:
        """Return the number itself, for messages."""
        return self.text


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message."""

    role: Role
    content: str
    train: bool = True
    """Whether the loss sees this turn; only assistant turns are ever trained."""


class ChatRow(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="chat"
):
    """A conversation, rendered through the model's chat template."""

    line: int
    """Line of the original file, from 1."""
    messages: tuple[Turn, ...]


class CompletionRow(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="completion"
):
    """A prompt and its continuation, joined as they are; no template, white space kept."""

    line: int
    prompt: str
    completion: str


Row = ChatRow | CompletionRow


class Reject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row that is left out, with the reason."""

    line: int
    reason: str
    """A stable word, e.g. `no-answer`."""
    detail: str
    """What was seen, clipped."""


_row_decoder = msgspec.json.Decoder(Row)


def decode_row(line: bytes) -> Row:
    """Parse one normalised row.

    Raises:
        msgspec.DecodeError: the line is not a normalised row.
    """
    return _row_decoder.decode(line)


def encode_row(row: Row) -> bytes:
    """Return the row as one line of JSON, newline included."""
    return msgspec.json.encode(row) + b"\n"


def first_question(row: Row) -> str:
    """Return what the row asks: its first user turn, or its prompt."""
    if isinstance(row, CompletionRow):
        return row.prompt
    return next((turn.content for turn in row.messages if turn.role == "user"), "")


def row_key(row: Row) -> str:
    """Return what two rows share that are twins: the question, or all text where none is asked."""
    question = first_question(row)
    if question.strip():
        return question
    if isinstance(row, CompletionRow):
        return row.completion
    return "\n".join(turn.content for turn in row.messages)


def mend_text(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and UTF-8 cannot, by U+FFFD; drop NUL."""
    if text.isascii():
        return text.replace("\0", "")
    return _SURROGATE.sub("\ufffd", text).replace("\0", "")


def clip(value: object, limit: int = 80) -> str:
    """Return a short, one-line form of a value for messages, safe to print on a terminal."""
    # A row may be huge or nested to the limit of recursion; only its start is looked at.
    text = _SHORT.repr(value) if isinstance(value, dict | list) else str(value)
    words = " ".join(text[: 8 * limit].split())
    clean = _SURROGATE.sub("\ufffd", words.translate(_CONTROLS))
    if len(clean) <= limit and len(text) <= 8 * limit:
        return clean
    return f"{clean[: limit - 1]}…"
