"""The canonical row: what every accepted format is normalised to, one JSON object a line."""

from typing import Final, Literal

import msgspec

Role = Literal["system", "user", "assistant", "tool"]
Format = Literal["chat", "alpaca", "completion"]

FORMATS: Final[tuple[Format, ...]] = ("chat", "alpaca", "completion")


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


def mend_text(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and UTF-8 cannot, by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clip(value: object, limit: int = 80) -> str:
    """Return a short, one-line form of a value for messages."""
    text = mend_text(" ".join(str(value).split()))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
