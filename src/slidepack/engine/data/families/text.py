"""Plain text, all of which is learned."""

from slidepack.engine.data.families.cells import Cells, RejectedError
from slidepack.engine.data.rows import TextRow, is_blank


def convert(line: int, cells: Cells) -> TextRow:
    """Return the row's text as it is."""
    if cells.cell("text") is None:
        raise RejectedError("empty-text", cells.lack("text"))
    text = cells.string("text")
    if is_blank(text):
        raise RejectedError("empty-text", cells.lack("text"))
    return TextRow(line, text)
