"""Alpaca and its variants: an instruction, perhaps an input to it, and the output."""

from typing import Any

from slidepack.engine.data.families.cells import Cells, RejectedError
from slidepack.engine.data.rows import ChatRow, Turn, clip, is_blank, says_none


def convert(line: int, cells: Cells) -> ChatRow:
    """Return the row as a conversation; earlier rounds of `history` are learned too."""
    instruction, given = cells.optional("instruction"), cells.optional("input")
    if says_none(given):
        given = ""
        cells.repairs.add("no-input")
    question = "\n\n".join(part for part in (instruction, given) if part)
    if not question:
        raise RejectedError("no-question", cells.lack("instruction"))
    if not instruction:
        cells.repairs.add("no-instruction")
    turns = [Turn("system", system, False)] if (system := cells.optional("system")) else []
    turns += _history(cells)
    turns += (Turn("user", question, False), Turn("assistant", cells.answer("output")))
    return ChatRow(line, tuple(turns))


def _history(cells: Cells) -> list[Turn]:
    try:
        history = cells.listed("history")
    except ValueError as error:
        raise RejectedError("bad-history", f"{cells.name('history')}: {error}") from error
    if history is None or history == "":
        return []
    if not isinstance(history, list):
        raise RejectedError("bad-history", f"{cells.name('history')} is {clip(history)}")
    return [turn for pair in history for turn in _round(pair, cells)]


def _round(pair: Any, cells: Cells) -> tuple[Turn, Turn]:
    if isinstance(pair, list) and len(pair) == 2:
        question, answer = (cells.text(text) for text in pair)
        if question and answer and not is_blank(question) and not is_blank(answer):
            return Turn("user", question, False), Turn("assistant", answer)
    raise RejectedError("bad-history", f"a round of {cells.name('history')} is {clip(pair)}")
