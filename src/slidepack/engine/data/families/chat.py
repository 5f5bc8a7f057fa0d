"""Conversations: OpenAI's `messages` and ShareGPT's `conversations`, whatever the column's name.

Both are read by the same code, because files mix the two and their many names of roles.
"""

from typing import Any

from slidepack.engine.data.families.cells import Cells, RejectedError, Repair
from slidepack.engine.data.families.json_text import tools_of
from slidepack.engine.data.families.turns import read_turn
from slidepack.engine.data.rows import ChatRow, Role, Turn, is_blank


def convert(line: int, cells: Cells) -> ChatRow:
    """Return the row's conversation."""
    turns = [
        read_turn(index, message, cells) for index, message in enumerate(_messages(cells), start=1)
    ]
    if "system" in cells.columns and (system := cells.optional("system")):
        if turns[0].role == "system":
            cells.unread.add(f"{cells.name('system')} (beside a system turn)")
        else:
            turns.insert(0, Turn("system", system, False))
    tools = tools_of(cells) if "tools" in cells.columns else ""
    return ChatRow(line, finish(turns, cells), tools)


def finish(turns: list[Turn], cells: Cells) -> tuple[Turn, ...]:
    """Return the turns up to the last answer, after a look at whether they can be learned."""
    last = len(turns)
    while last and turns[last - 1].role != "assistant":
        last -= 1
    if not last:
        raise RejectedError("no-answer", "no assistant turn")
    if last < len(turns):
        cells.repairs.add(_trailing({turn.role for turn in turns[last:]}))
        del turns[last:]
    trained = False
    for index, turn in enumerate(turns, start=1):
        trained = trained or turn.train
        if is_blank(turn.content):
            _bear_silence(index, turn)
    if not trained:
        raise RejectedError("no-answer", "every assistant turn has weight 0")
    return tuple(turns)


def _trailing(roles: set[Role]) -> Repair:
    if "user" in roles:
        return "trailing-user-turn"
    return "trailing-tool-turn" if "tool" in roles else "trailing-system-turn"


def _bear_silence(index: int, turn: Turn) -> None:
    """Reject a turn that says nothing, where something must be said."""
    if turn.role == "assistant" and not turn.tool_calls:
        raise RejectedError("empty-answer", f"turn {index}: the assistant says nothing")
    if turn.role == "user":
        raise RejectedError("empty-turn", f"turn {index}: the user says nothing")


def _messages(cells: Cells) -> list[Any]:
    try:
        messages = cells.listed("messages")
    except ValueError:
        messages = None
    if not isinstance(messages, list) or not messages:
        raise RejectedError("no-messages", f"{cells.name('messages')} is {cells.shown('messages')}")
    return messages
