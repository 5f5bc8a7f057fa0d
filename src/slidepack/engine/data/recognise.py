"""Recognises the format of a row, and converts it to the canonical form.

One method a format; a new format is a new branch of `RowConverter._convert` and entries of the
two tables of fields. What is mended on the way is counted, so that the user is told.
"""

from collections import Counter
from typing import Any, Final, Literal

from slidepack.engine.data.rows import (
    ChatRow,
    CompletionRow,
    Format,
    Number,
    Reject,
    Role,
    Row,
    Turn,
    clip,
    mend_text,
)

_INVISIBLE: Final = dict.fromkeys(map(ord, "\ufeff\u200b\u200c\u200d\u2060"))
_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_FIELDS: Final[dict[Format, frozenset[str]]] = {
    "chat": frozenset({"messages"}),
    "alpaca": frozenset({"instruction", "output"}),
    "completion": frozenset({"prompt", "completion"}),
}


_KNOWN_FIELDS: Final[dict[Format, frozenset[str]]] = {
    "chat": frozenset({"messages"}),
    "alpaca": frozenset({"instruction", "input", "output", "system"}),
    "completion": frozenset({"prompt", "completion"}),
}
_MARKS: Final = ("weight", "loss_weight", "train")
"""Fields of a turn that say whether it is trained: OpenAI's, LLaMA-Factory's, Axolotl's."""
_TURN_FIELDS: Final = frozenset({"role", "content", *_MARKS})

_Repair = Literal["number", "nul", "surrogate"]
_REPAIRS: Final[dict[_Repair, str]] = {
    "number": "Rows in which a number was taken as text",
    "nul": "Rows out of which NUL characters were taken",
    "surrogate": "Rows in which broken characters became U+FFFD",
}


class _RejectedError(Exception):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def formats_of(value: object) -> tuple[Format, ...]:
    """Return every format whose fields the value has; most rows fit exactly one."""
    if not isinstance(value, dict):
        return ()
    return tuple(name for name, fields in _FIELDS.items() if fields <= value.keys())


class RowConverter:
    """Converts the rows of one file, read as one format, and counts what it mends."""

    def __init__(self, form: Format) -> None:
        """Start with nothing mended."""
        self._form = form
        self._mended: set[_Repair] = set()
        self._rows_mended: Counter[_Repair] = Counter()
        self._first_lines: dict[_Repair, int] = {}

    def convert(self, line: int, value: object) -> Row | Reject:
        """Convert one parsed value; a row that cannot be used becomes a `Reject`."""
        if not isinstance(value, dict):
            return Reject(line=line, reason="not-an-object", detail=clip(value))
        self._mended.clear()
        try:
            row = self._convert(line, value)
        except _RejectedError as rejected:
            return Reject(line=line, reason=rejected.reason, detail=rejected.detail)
        for repair in self._mended:
            self._rows_mended[repair] += 1
            self._first_lines.setdefault(repair, line)
        return row

    def notes(self) -> list[str]:
        """Return a sentence for each kind of repair that usable rows needed."""
        return [
            f"{what}: {self._rows_mended[repair]} (the first is line {self._first_lines[repair]})."
            for repair, what in _REPAIRS.items()
            if repair in self._first_lines
        ]

    def _convert(self, line: int, value: dict[str, Any]) -> Row:
        match self._form:
            case "chat":
                return self._convert_chat(line, value)
            case "alpaca":
                return self._convert_alpaca(line, value)
            case "completion":
                prompt = self._string(value, "prompt")
                return CompletionRow(line, prompt, self._answer(value, "completion"))

    def _convert_chat(self, line: int, value: dict[str, Any]) -> ChatRow:
        messages = value.get("messages")
        if not isinstance(messages, list) or not messages:
            raise _RejectedError("no-messages", f"messages is {clip(messages)}")
        turns = tuple(self._turn(index, message) for index, message in enumerate(messages, start=1))
        if not any(turn.role == "assistant" for turn in turns):
            raise _RejectedError("no-answer", "no assistant turn")
        for index, turn in enumerate(turns, start=1):
            if turn.train and is_blank(turn.content):
                raise _RejectedError("empty-answer", f"turn {index}: the assistant says nothing")
        if not any(turn.train for turn in turns):
            raise _RejectedError("no-answer", "every assistant turn has weight 0")
        return ChatRow(line, turns)

    def _turn(self, index: int, message: object) -> Turn:
        if not isinstance(message, dict):
            raise _RejectedError("bad-message", f"turn {index} is {clip(message)}")
        name = message.get("role")
        role = _ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            raise _RejectedError("unknown-role", f"turn {index} has role {clip(name)}")
        if message.get("tool_calls"):
            raise _RejectedError("tool-calls", f"turn {index} calls tools, which are not read yet")
        content = self._text(_joined_parts(message.get("content")))
        if content is None:
            raise _RejectedError(
                "bad-content", f"turn {index} has content {clip(message.get('content'))}"
            )
        trained = _is_trained(index, message)
        return Turn(role, content, role == "assistant" and trained)

    def _convert_alpaca(self, line: int, value: dict[str, Any]) -> ChatRow:
        parts = [self._string(value, "instruction")]
        if value.get("input") is not None:
            parts.append(self._string(value, "input"))
        question = "\n\n".join(part for part in parts if not is_blank(part))
        if not question:
            raise _RejectedError("no-question", "instruction is empty")
        answer = self._answer(value, "output")
        turns = [Turn("user", question, False), Turn("assistant", answer)]
        if value.get("system") is not None:
            system = self._string(value, "system")
            if not is_blank(system):
                turns.insert(0, Turn("system", system, False))
        return ChatRow(line, tuple(turns))

    def _answer(self, value: dict[str, Any], field: str) -> str:
        if value.get(field) is None:
            raise _RejectedError("no-answer", f"{field} is missing or null")
        text = self._string(value, field)
        if is_blank(text):
            raise _RejectedError("empty-answer", f"{field} is empty")
        return text

    def _string(self, value: dict[str, Any], field: str) -> str:
        content = self._text(value.get(field))
        if content is None:
            raise _RejectedError("not-text", f"{field} is {clip(value.get(field))}")
        return content

    def _text(self, content: object) -> str | None:
        """Return a text; numbers are taken as they are written, for answers of arithmetic."""
        if isinstance(content, str):
            return self._mend(content)
        # NaN and Infinity are no numbers of JSON, but what other programs write for "nothing".
        if isinstance(content, Number) and content.text[-1].isdigit():
            self._mended.add("number")
            return content.text
        return None

    def _mend(self, text: str) -> str:
        mended = mend_text(text)
        if len(mended) != len(text):
            self._mended.add("nul")
        if "\ufffd" in mended and mended.count("\ufffd") != text.count("\ufffd"):
            self._mended.add("surrogate")
        return mended


def is_blank(text: str) -> bool:
    """Return whether the text shows nothing: white space and zero-width characters only."""
    return not text.translate(_INVISIBLE).strip()


def unread_fields(value: dict[str, Any], form: Format) -> set[str]:
    """Return the names of a converted row's fields that no prompt sees."""
    names = set(value.keys() - _KNOWN_FIELDS[form])
    if form == "chat":
        for message in value["messages"]:
            if not message.keys() <= _TURN_FIELDS:
                names.update(f"messages[].{name}" for name in message.keys() - _TURN_FIELDS)
    return names


def _joined_parts(content: object) -> object:
    """Return the text of a list of text parts; any other content is passed on as it is."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            return None
        text = part.get("text", part.get("value"))
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts)


def _is_trained(index: int, message: dict[str, Any]) -> bool:
    """Return whether the turn's own marks let the loss see it; null stands for no mark."""
    trained = True
    for name in _MARKS:
        mark = message.get(name)
        if name != "train" and isinstance(mark, Number):
            mark = {0.0: False, 1.0: True}.get(float(mark.text), mark)
        if mark is None:
            continue
        if not isinstance(mark, bool):
            raise _RejectedError("bad-weight", f"turn {index} has {name} {clip(mark)}")
        trained = trained and mark
    return trained
