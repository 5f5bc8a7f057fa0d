"""One message of a conversation, as OpenAI or as ShareGPT writes it."""

from typing import Any, Final

from slidepack.engine.data.families.cells import Cells, RejectedError
from slidepack.engine.data.families.json_text import calls_of_message, calls_of_text
from slidepack.engine.data.families.parts import Parts, join_parts
from slidepack.engine.data.rows import Number, Role, Turn, clip

_ROLES: Final[dict[str, Role]] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "input"), "user"),
    **dict.fromkeys(
        ("assistant", "gpt", "model", "bot", "chatgpt", "bing", "bard", "output"), "assistant"
    ),
    "function_call": "assistant",
    **dict.fromkeys(("tool", "function", "observation", "tool_response", "ipython"), "tool"),
}
_MARKS: Final = ("weight", "loss_weight", "train")
"""Fields of a turn that say whether it is trained: OpenAI's, LLaMA-Factory's, Axolotl's."""
_REASONING: Final = ("reasoning_content", "reasoning", "thinking")
_CALLS: Final = ("tool_calls", "function_call")
_PLAIN: Final = ({"role", "content"}, {"from", "value"})
_READ: Final = frozenset(_MARKS)
_READ_OF: Final[dict[Role, frozenset[str]]] = {
    "system": _READ,
    "user": _READ,
    "assistant": _READ | {*_REASONING, *_CALLS},
    "tool": _READ | {"tool_call_id", "name"},
}


def read_turn(index: int, message: Any, cells: Cells) -> Turn:
    """Return the message as a turn; one that says nothing has the content ""."""
    if type(message) is not dict:
        raise RejectedError("bad-message", f"turn {index} is {clip(message)}")
    speaker = "role" if "role" in message else "from"
    name = message.get(speaker)
    role = _ROLES.get(name) or _ROLES.get(name.casefold()) if isinstance(name, str) else None
    if role is None:
        shown = f"role {clip(name)}" if speaker in message else "no role"
        raise RejectedError("unknown-role", f"turn {index} has {shown}")
    said_in = "content" if "content" in message else "value" if "value" in message else "text"
    content = message.get(said_in)
    if isinstance(content, str) and message.keys() in _PLAIN and name != "function_call":
        return Turn(role, cells.mend(content), role == "assistant")
    said = _said(index, content, cells)
    trained = _is_trained(index, message)
    _note_unread(message, _READ_OF[role] | {speaker, said_in}, cells)
    if role == "assistant":
        if name == "function_call":
            return Turn(role, "", trained, tool_calls=calls_of_text(index, said.text, cells))
        thought = _reasoning(message, cells) or said.thought
        calls = calls_of_message(index, message, cells) or said.calls
        return Turn(role, said.text, trained, thought, calls)
    if said.thought or said.calls:
        raise RejectedError("bad-content", f"turn {index} thinks or calls tools as {role}")
    if role == "tool":
        call_id, tool = (cells.text(message.get(key)) or "" for key in ("tool_call_id", "name"))
        return Turn(role, said.text, False, tool_call_id=call_id, name=tool)
    return Turn(role, said.text, False)


def _said(index: int, content: Any, cells: Cells) -> Parts:
    if content is None:
        return Parts("")
    if isinstance(content, list):
        return join_parts(index, content, cells)
    text = cells.text(content)
    if text is None:
        raise RejectedError("bad-content", f"turn {index} has content {clip(content)}")
    return Parts(text)


def _reasoning(message: dict[str, Any], cells: Cells) -> str:
    thought = ""
    for name in _REASONING:
        content = message.get(name)
        text = cells.text(content)
        if text and not thought:
            thought = text
        elif content not in (None, "", thought):
            cells.unread.add(_part(name, cells))
    return thought


def _is_trained(index: int, message: dict[str, Any]) -> bool:
    """Return whether the turn's own marks let the loss see it; null stands for no mark."""
    trained = True
    for name in _MARKS:
        mark = message.get(name)
        if mark is None:
            continue
        if name != "train":
            mark = _zero_or_one(mark)
        if not isinstance(mark, bool):
            allowed = "true or false" if name == "train" else "0 or 1"
            text = "the text " if isinstance(mark, str) else ""
            raise RejectedError(
                "bad-weight", f"turn {index} has {name} {text}{clip(mark)}, not {allowed}"
            )
        trained = trained and mark
    return trained


def _zero_or_one(mark: Any) -> Any:
    number = float(mark.text) if isinstance(mark, Number) else mark
    if isinstance(number, int | float) and number in (0, 1):
        return bool(number)
    return mark


def _note_unread(message: dict[str, Any], read: frozenset[str], cells: Cells) -> None:
    for name in message.keys() - read:
        if message[name] is not None:
            cells.unread.add(_part(name, cells))


def _part(name: str, cells: Cells) -> str:
    return f"{cells.name('messages')}[].{name}"
