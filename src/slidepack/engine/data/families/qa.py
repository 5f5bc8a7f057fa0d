"""A question and its answer, under any of the names that data sets give them."""

from slidepack.engine.data.families.cells import Cells
from slidepack.engine.data.rows import ChatRow, Turn


def convert(line: int, cells: Cells) -> ChatRow:
    """Return the row as a conversation; a context stands before the question."""
    question = cells.question("question")
    if context := cells.optional("context"):
        question = f"{context}\n\n{question}"
    turns = [Turn("user", question, False), Turn("assistant", cells.answer("answer"))]
    if system := cells.optional("system"):
        turns.insert(0, Turn("system", system, False))
    return ChatRow(line, tuple(turns))
