"""A prompt and its completion: two texts, or two parts of one conversation as TRL writes it."""

from typing import Any

from slidepack.engine.data.columns import is_conversation
from slidepack.engine.data.families.cells import Cells, RejectedError
from slidepack.engine.data.families.chat import finish
from slidepack.engine.data.families.turns import read_turn
from slidepack.engine.data.rows import ChatRow, CompletionRow, Turn


def convert(line: int, cells: Cells) -> CompletionRow | ChatRow:
    """Return the row; texts keep every space, and only the completion is learned."""
    prompt, completion = cells.cell("prompt"), cells.cell("completion")
    if is_conversation(prompt) and is_conversation(completion):
        return ChatRow(line, _joined(prompt, completion, cells))
    return CompletionRow(line, cells.string("prompt"), cells.answer("completion"))


def _joined(prompt: list[Any], completion: list[Any], cells: Cells) -> tuple[Turn, ...]:
    asked = [read_turn(index, message, cells) for index, message in enumerate(prompt, start=1)]
    answered = [
        read_turn(index, message, cells)
        for index, message in enumerate(completion, start=len(prompt) + 1)
    ]
    if not any(turn.train for turn in answered):
        raise RejectedError("no-answer", f"{cells.name('completion')} has no assistant turn")
    untrained = [
        Turn(t.role, t.content, False, t.reasoning, t.tool_calls, t.tool_call_id, t.name)
        for t in asked
    ]
    return finish(untrained + answered, cells)
