"""Takes the rows out of a file that is one JSON object: from the stream, or from one parsed row."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Final

from slidepack.engine.data.encoding import TextReader
from slidepack.engine.data.json_array import Cursor, RawRow, numbered, walk_array
from slidepack.engine.data.rows import Reject, clip
from slidepack.engine.data.wrapping import SPLIT_NAMES, SPLIT_ROWS, Wrapping, survey_row

_MAX_STREAMS: Final = 20
"""A table of more columns is held in memory: each column of a stream has a buffer of its own."""

_BY_COLUMNS: Final = "The file is a table by columns; line numbers count its rows from 1."
_NUMBERED: Final = (
    "The file is a table by columns with numbered cells, as pandas writes it; line numbers count "
    "its rows from 1."
)
_SPLIT: Final = (
    "The file is a table with the names of its columns apart, as pandas splits it; line numbers "
    "count its rows from 1."
)
_BY_NUMBER: Final = (
    "The file is an object with a numbered row in each field; line numbers count the rows from 1."
)

OpenReader = Callable[[], AbstractContextManager[TextReader]]
Rows = Iterator[RawRow | Reject]
_Items = Callable[[str | None], Iterator[RawRow]]
"""Returns the items or members of a field; None stands for the object itself."""


def unwrap_stream(wrapping: Wrapping, open_reader: OpenReader, name: str, notes: list[str]) -> Rows:
    """Yield the rows of a file that is one object; reads it again, piece by piece."""
    if wrapping.name_twice is not None:
        yield RawRow(wrapping.line, {}, name_twice=wrapping.name_twice)
        return
    with ExitStack() as stack:

        def open_cursor() -> Cursor:
            return Cursor(stack.enter_context(open_reader()), name)

        def items(field: str | None) -> Iterator[RawRow]:
            cursor = open_cursor()
            if field is None:
                return _walk_items(cursor)
            return _walk_field(cursor, wrapping.fields[field].index)

        rows = None
        if not wrapping.is_table() or len(wrapping.fields) <= _MAX_STREAMS:
            rows = _rows_inside(wrapping, items, name, notes)
        if rows is None:
            cursor = open_cursor()
            cursor.peek()
            rows = _unwrap_row(cursor.take_row(), name, notes)
        yield from rows


def unwrap(rows: Rows, name: str, notes: list[str]) -> Rows:
    """Pass the rows of JSON lines on; where the only row holds all rows, yield those."""
    first = next(rows, None)
    if first is None:
        return
    second = next(rows, None)
    if second is None and isinstance(first, RawRow):
        yield from _unwrap_row(first, name, notes)
        return
    yield first
    if second is not None:
        yield second
    yield from rows


def _unwrap_row(row: RawRow, name: str, notes: list[str]) -> Rows:
    value = row.value
    if not isinstance(value, dict) or row.name_twice is not None:
        yield row
        return

    def items(field: str | None) -> Iterator[RawRow]:
        found = value if field is None else value[field]
        for item in found.values() if isinstance(found, dict) else found:
            yield RawRow(row.line, item)

    rows = _rows_inside(survey_row(row, value), items, name, notes)
    if rows is None:
        yield row
    else:
        yield from rows


def _rows_inside(
    wrapping: Wrapping, items: _Items, file_name: str, notes: list[str]
) -> Rows | None:
    """Return the rows that the object holds; None where it is a row itself."""
    container = wrapping.container(file_name)
    if container is not None:
        note = f"The rows stand in the field {container}; line numbers count them from 1."
        notes.append(f"{note}{wrapping.not_read((container,))}")
        return numbered(items(container))
    if wrapping.is_split_table():
        notes.append(f"{_SPLIT}{wrapping.not_read((SPLIT_NAMES, SPLIT_ROWS))}")
        return _split_rows([str(name.value) for name in items(SPLIT_NAMES)], items(SPLIT_ROWS))
    if wrapping.is_table():
        notes.append(_NUMBERED if wrapping.has_numbered_cells() else _BY_COLUMNS)
        return _rows_of_columns({name: items(name) for name in wrapping.fields})
    if wrapping.is_rows_by_number():
        notes.append(_BY_NUMBER)
        return numbered(items(None))
    return None


def _rows_of_columns(columns: dict[str, Iterator[RawRow]]) -> Iterator[RawRow]:
    for number, cells in enumerate(zip(*columns.values(), strict=True), start=1):
        value = dict(zip(columns, [cell.value for cell in cells], strict=True))
        twice = [cell.name_twice for cell in cells if cell.name_twice is not None]
        yield RawRow(number, value, name_twice=twice[0] if twice else None)


def _split_rows(names: list[str], rows: Iterator[RawRow]) -> Rows:
    twice = next((name for name in names if names.count(name) > 1), None)
    for row in numbered(rows):
        cells = row.value
        if len(cells) == len(names):
            value = dict(zip(names, cells, strict=True))
            yield RawRow(row.line, value, name_twice=row.name_twice if twice is None else twice)
        else:
            detail = f"{len(cells)} cells, and there are {len(names)} columns: {clip(cells)}"
            yield Reject(line=row.line, reason="wrong-cell-count", detail=detail)


def _walk_field(cursor: Cursor, wanted: int) -> Iterator[RawRow]:
    cursor.peek()
    for index, _ in enumerate(cursor.walk_names()):
        if index == wanted:
            yield from _walk_items(cursor)
            return
        # A field before it may be too long for one value.
        deque(_walk_items(cursor), maxlen=0)


def _walk_items(cursor: Cursor) -> Iterator[RawRow]:
    """Yield what is in the list or object at the cursor, or else the value itself."""
    match cursor.peek():
        case "[":
            yield from walk_array(cursor)
        case "{":
            for _ in cursor.walk_names():
                yield cursor.take_row()
        case _:
            yield cursor.take_row()
