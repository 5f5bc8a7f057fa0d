"""Files that are one JSON object with all rows inside: in a field of it, or column by column."""

from collections.abc import Iterator
from typing import Final

from slidepack.engine.data.json_array import RawRow
from slidepack.engine.data.rows import Reject

_CONTAINERS: Final = ("data", "train", "rows", "conversations", "examples")
"""Fields of a single object in which files keep their rows."""


def unwrap(rows: Iterator[RawRow | Reject], notes: list[str]) -> Iterator[RawRow | Reject]:
    """Pass the rows on; where the file is one object that holds all rows, yield those."""
    first = next(rows, None)
    if first is None:
        return
    second = next(rows, None)
    if second is None and isinstance(first, RawRow) and isinstance(first.value, dict):
        yield from _unwrap_object(first, first.value, notes)
        return
    yield first
    if second is not None:
        yield second
    yield from rows


def _unwrap_object(
    row: RawRow, value: dict[str, object], notes: list[str]
) -> Iterator[RawRow | Reject]:
    fields = [name for name in _CONTAINERS if _holds_rows(value.get(name))]
    columns = [column for column in value.values() if isinstance(column, list)]
    if len(fields) == 1:
        items = value[fields[0]]
        assert isinstance(items, list)
        notes.append(f"The rows stand in the field {fields[0]}; line numbers count them from 1.")
        for number, item in enumerate(items, start=1):
            yield RawRow(number, item)
    elif len(columns) == len(value) and _is_table(columns):
        notes.append("The file is a table by columns; line numbers count its rows from 1.")
        for number, cells in enumerate(zip(*columns, strict=True), start=1):
            yield RawRow(number, dict(zip(value, cells, strict=True)))
    else:
        yield row


def _is_table(columns: list[list[object]]) -> bool:
    """Return whether the lists are columns of equal length; an object is no cell."""
    lengths = {len(column) for column in columns}
    cells = (cell for column in columns for cell in column)
    return len(lengths) == 1 and 0 not in lengths and not any(isinstance(c, dict) for c in cells)


def _holds_rows(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) for item in value)
        and not _is_conversation(value)
    )


def _is_conversation(value: object) -> bool:
    """Return whether a list holds the turns of one conversation, and not rows."""
    return (
        isinstance(value, list)
        and bool(value)
        and isinstance(value[0], dict)
        and not value[0].keys().isdisjoint(("role", "from"))
    )
