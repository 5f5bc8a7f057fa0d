"""Recognises the format of a row, and converts it to the canonical form.

One converter a format; a new format is a new entry of `_CONVERTERS` and `_FIELDS`.
"""

from collections.abc import Callable
from typing import Any, Final

from slidepack.engine.data.rows import (
    ChatRow,
    CompletionRow,
    Format,
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


def convert(line: int, value: object, form: Format) -> Row | Reject:
    """Convert one parsed value read as `form`; a row that cannot be used becomes a `Reject`."""
    if not isinstance(value, dict):
        return Reject(line=line, reason="not-an-object", detail=clip(value))
    try:
        return _CONVERTERS[form](line, value)
    except _RejectedError as rejected:
        return Reject(line=line, reason=rejected.reason, detail=rejected.detail)


def is_blank(text: str) -> bool:
    """Return whether the text shows nothing: white space and zero-width characters only."""
    return not text.translate(_INVISIBLE).strip()


def _convert_chat(line: int, value: dict[str, Any]) -> ChatRow:
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _RejectedError("no-messages", f"messages is {clip(messages)}")
    turns = tuple(_turn(index, message) for index, message in enumerate(messages, start=1))
    if not any(turn.role == "assistant" for turn in turns):
        raise _RejectedError("no-answer", "no assistant turn")
    for index, turn in enumerate(turns, start=1):
        if turn.role == "assistant" and turn.train and is_blank(turn.content):
            raise _RejectedError("empty-answer", f"turn {index}: the assistant says nothing")
    if not any(turn.role == "assistant" and turn.train for turn in turns):
        raise _RejectedError("no-answer", "every assistant turn has weight 0")
    return ChatRow(line, turns)


def _turn(index: int, message: object) -> Turn:
    if not isinstance(message, dict):
        raise _RejectedError("bad-message", f"turn {index} is {clip(message)}")
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise _RejectedError("unknown-role", f"turn {index} has role {clip(message.get('role'))}")
    if message.get("tool_calls"):
        raise _RejectedError("tool-calls", f"turn {index} calls tools, which are not read yet")
    content = _text_parts(message.get("content"))
    if content is None:
        raise _RejectedError(
            "bad-content", f"turn {index} has content {clip(message.get('content'))}"
        )
    weight = message.get("weight", 1)
    train = message.get("train", True)
    if weight not in (0, 1) or not isinstance(train, bool):
        raise _RejectedError("bad-weight", f"turn {index} has weight {weight}, train {train}")
    return Turn(role, content, role == "assistant" and train and weight == 1)


def _text_parts(content: object) -> str | None:
    """Return the text of a message: a string, or a list of text parts joined."""
    if isinstance(content, str):
        return mend_text(content)
    if isinstance(content, list):
        texts = [
            part.get("text")
            for part in content
            if isinstance(part, dict) and part.get("type") == "text"
        ]
        if len(texts) == len(content) and all(isinstance(text, str) for text in texts):
            return mend_text("".join(map(str, texts)))
    return None


def _convert_alpaca(line: int, value: dict[str, Any]) -> ChatRow:
    instruction = _string(value, "instruction")
    extra = _string(value, "input") if value.get("input") not in (None, "") else ""
    if is_blank(instruction) and is_blank(extra):
        raise _RejectedError("no-question", "instruction is empty")
    answer = _answer(value, "output")
    question = f"{instruction}\n\n{extra}" if extra else instruction
    turns = [Turn("user", question, False), Turn("assistant", answer)]
    system = value.get("system")
    if isinstance(system, str) and not is_blank(system):
        turns.insert(0, Turn("system", system, False))
    return ChatRow(line, tuple(turns))


def _convert_completion(line: int, value: dict[str, Any]) -> CompletionRow:
    return CompletionRow(line, _string(value, "prompt"), _answer(value, "completion"))


def _answer(value: dict[str, Any], field: str) -> str:
    if value.get(field) is None:
        raise _RejectedError("no-answer", f"{field} is missing or null")
    text = _string(value, field)
    if is_blank(text):
        raise _RejectedError("empty-answer", f"{field} is empty")
    return text


def _string(value: dict[str, Any], field: str) -> str:
    """Return a text field; numbers are taken as they are written, for answers of arithmetic."""
    content = value.get(field)
    if isinstance(content, str):
        return mend_text(content)
    if isinstance(content, int | float) and not isinstance(content, bool):
        return str(content)
    raise _RejectedError("not-text", f"{field} is {clip(content)}")


_CONVERTERS: Final[dict[Format, Callable[[int, dict[str, Any]], Row]]] = {
    "chat": _convert_chat,
    "alpaca": _convert_alpaca,
    "completion": _convert_completion,
}
