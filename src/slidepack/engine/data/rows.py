"""The canonical row: what every accepted format is normalised to, one JSON object a line."""

import json
import re
import reprlib
from itertools import islice
from typing import Final, Literal

import msgspec

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CONTROLS: Final = dict.fromkeys([*range(32), *range(127, 160)], "\ufffd")
_INVISIBLE: Final = "\ufeff\u200b\u200c\u200d\u2060"
_NONE: Final = re.compile(r"\s*[<(\[]?no[ _-]?(in|out)put[>)\]]?\.?\s*", re.IGNORECASE)
_LONGEST_NONE: Final = 40
_INVISIBLE_TABLE: Final = dict.fromkeys(map(ord, _INVISIBLE))

Role = Literal["system", "user", "assistant", "tool"]
Format = Literal["chat", "sharegpt", "alpaca", "completion", "qa", "text", "tokens", "preference"]

FORMATS: Final[tuple[Format, ...]] = (
    "chat", "sharegpt", "alpaca", "completion", "qa", "text", "tokens", "preference",
)  # fmt: skip
"""Families of rows. Preference pairs are recognised so that they can be refused by name."""


class Number(msgspec.Struct, frozen=True, array_like=True):
    """A number of a data file, kept as it is written, however long: `1.50` stays `1.50`.

    Encoded, it is an array: then only the objects of a row have names in it.
    """

    text: str

    def __repr__(self) -> str:
        """Return the number itself, for messages."""
        return self.text


class _Short(reprlib.Repr):
    """Shows the start of a value as JSON, however large or deep it is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_str(self, text: str, level: int) -> str:
        """Return a text in the quotes of JSON, without its middle where it is long."""
        if len(text) > self.maxstring:
            half = self.maxstring // 2
            text = f"{text[:half]}…{text[-half:]}"
        return json.dumps(text, ensure_ascii=False)

    def repr_dict(self, value: dict[str, object], level: int) -> str:
        """Return an object with its names in the order of the file."""
        if not value or level <= 0:
            return "{…}" if value else "{}"
        parts = [
            f"{self.repr1(name, level - 1)}: {self.repr1(value[name], level - 1)}"
            for name in islice(value, self.maxdict)
        ]
        if len(value) > self.maxdict:
            parts.append("…")
        return f"{{{', '.join(parts)}}}"

    def repr_bool(self, value: bool, level: int) -> str:
        """Return JSON's word for it."""
        return "true" if value else "false"

    def repr_NoneType(self, value: None, level: int) -> str:
        """Return JSON's word for nothing."""
        return "null"


_SHORT: Final = _Short()


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One message."""

    role: Role
    content: str
    train: bool = True
    """Whether the loss sees this turn; only assistant turns are ever trained."""
    reasoning: str = ""
    """What the assistant thinks before it answers, for templates that show it."""
    tool_calls: str = ""
    """JSON list of the calls an assistant makes, as OpenAI writes them; "" for none."""
    tool_call_id: str = ""
    """Of the call that a tool answers, where the file tells."""
    name: str = ""
    """Of the tool that answers, where the file tells."""


class ChatRow(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="chat",
):
    """A conversation, rendered through the model's chat template."""

    line: int
    """Line of the original file, from 1."""
    messages: tuple[Turn, ...]
    tools: str = ""
    """JSON list of the tools that may be called, as OpenAI writes them; "" for none."""


class CompletionRow(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="completion"
):
    """A prompt and its continuation, joined as they are; no template, white space kept."""

    line: int
    prompt: str
    completion: str


class TextRow(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="text"
):
    """A plain text, of which every token is learned, and its end."""

    line: int
    text: str


class TokensRow(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="tokens"
):
    """Token ids that another program made for one model."""

    line: int
    ids: tuple[int, ...]
    supervised: tuple[bool, ...]
    """Same length as `ids`: whether the loss counts the token's prediction."""


Row = ChatRow | CompletionRow | TextRow | TokensRow


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
    """Return what the row asks: its first user turn, or its prompt; "" where nothing is asked."""
    if isinstance(row, CompletionRow):
        return row.prompt
    if isinstance(row, ChatRow):
        return next((turn.content for turn in row.messages if turn.role == "user"), "")
    return ""


def row_key(row: Row) -> str:
    """Return what two rows share that are twins: the question, or all text where none is asked."""
    question = first_question(row)
    if question.strip():
        return question
    if isinstance(row, CompletionRow):
        return row.completion
    if isinstance(row, TextRow):
        return row.text
    if isinstance(row, TokensRow):
        return " ".join(map(str, row.ids))
    return "\n".join(turn.content for turn in row.messages)


def folded_key(row: Row) -> str:
    """Return `row_key` without case and with single spaces: rows that ask the same share it."""
    return " ".join(row_key(row).casefold().split())


def mend_text(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and UTF-8 cannot, by U+FFFD; drop NUL."""
    if "\0" not in text:
        try:
            text.encode()
        except UnicodeEncodeError:
            pass
        else:
            return text
    return _SURROGATE.sub("\ufffd", text).replace("\0", "")


def is_blank(text: str) -> bool:
    """Return whether the text shows nothing: white space and zero-width characters only."""
    first = text[:1]
    if first and not first.isspace() and first not in _INVISIBLE:
        return False
    # Long texts that begin with white space show something soon.
    if text[:80].translate(_INVISIBLE_TABLE).strip():
        return False
    return not text.translate(_INVISIBLE_TABLE).strip()


def says_none(text: str) -> bool:
    """Return whether a text is a generator's word for nothing: `<noinput>`, `No output.`."""
    return len(text) <= _LONGEST_NONE and _NONE.fullmatch(text) is not None


def clip(value: object, limit: int = 80) -> str:
    """Return a short, one-line form of a value for messages, safe to print on a terminal."""
    # A row may be huge or nested to the limit of recursion; only its start is looked at.
    shown_as_json = value is None or isinstance(value, dict | list | bool)
    text = _SHORT.repr(value) if shown_as_json else str(value)
    words = " ".join(text[: 8 * limit].split())
    clean = _SURROGATE.sub("\ufffd", words.translate(_CONTROLS))
    if len(clean) <= limit and len(text) <= 8 * limit:
        return clean
    return f"{clean[: limit - 1]}…"
