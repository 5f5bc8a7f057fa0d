"""Files that are one JSON object with all rows inside: in a field of it, or column by column."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.encoding import TextReader
from slidepack.engine.data.json_array import Cursor, RawRow, walk_array
from slidepack.engine.data.rows import Number, Reject, clip

_CONTAINERS: Final = ("data", "train", "rows", "conversations", "examples")
"""Fields of a single object in which files keep their rows."""
_MAX_FIELDS: Final = 1000
"""An object with more of them is no wrapping, nor a table: its fields are ids or words."""
_MAX_STREAMS: Final = 20
"""A table of more columns is held in memory: each column of a stream has a buffer of its own."""
_SHOWN_FIELDS: Final = 10
_TOKENS_FIELD: Final = "input_ids"
"""In a table each cell of it is a list; whole numbers are the tokens of one row."""

_TABLE_NOTE: Final = "The file is a table by columns; line numbers count its rows from 1."

OpenReader = Callable[[], AbstractContextManager[TextReader]]


class _Field(msgspec.Struct):
    """What a field of the outermost object holds, without holding it."""

    index: int
    is_list: bool = False
    num_items: int = 0
    num_objects: int = 0
    is_conversation: bool = False
    """Whether it holds the turns of one conversation, and not rows."""
    is_whole_numbers: bool = False
    """Whether it begins with a whole number."""

    def add(self, item: object) -> None:
        """Count an item of the list."""
        if not self.num_items and isinstance(item, Number):
            self.is_whole_numbers = item.text.removeprefix("-").isdecimal()
        if isinstance(item, dict):
            if not self.num_items and not item.keys().isdisjoint(("role", "from")):
                self.is_conversation = True
            self.num_objects += 1
        self.num_items += 1

    @property
    def may_hold_rows(self) -> bool:
        """Whether an item is an object that may be a row."""
        return self.num_objects > 0 and not self.is_conversation

    @property
    def holds_rows(self) -> bool:
        """Whether every item is an object that may be a row."""
        return 0 < self.num_items == self.num_objects and not self.is_conversation


class Wrapping(msgspec.Struct, frozen=True):
    """An object that makes up the whole file."""

    line: int
    fields: dict[str, _Field]

    def container(self, file_name: str) -> str | None:
        """Return the one field that holds the rows.

        Raises:
            SlidepackError: DATA-AMBIGUOUS, where more than one list may be the rows.
        """
        lists = {n: field for n, field in self.fields.items() if field.may_hold_rows}
        # An object with the turns of a conversation is a row, whatever else it lists.
        if len(lists) > 1 and not any(field.is_conversation for field in self.fields.values()):
            raise _ambiguous(file_name, lists)
        found = [n for n in _CONTAINERS if n in self.fields and self.fields[n].holds_rows]
        return found[0] if len(found) == 1 else None

    def is_table(self) -> bool:
        """Return whether the fields are columns of equal length; an object is no cell."""
        fields = self.fields.values()
        tokens = self.fields.get(_TOKENS_FIELD)
        return (
            not (tokens and tokens.is_whole_numbers)
            and all(field.is_list and not field.num_objects for field in fields)
            and len({field.num_items for field in fields}) == 1
            and all(field.num_items for field in fields)
        )

    def container_note(self, container: str) -> str:
        """Return the sentence for a file that keeps its rows in a field."""
        note = f"The rows stand in the field {container}; line numbers count them from 1."
        others = [clip(name, 40) for name in self.fields if name != container]
        if not others:
            return note
        more = ", …" if len(others) > _SHOWN_FIELDS else ""
        return f"{note} Not read: {', '.join(others[:_SHOWN_FIELDS])}{more}."


def survey_object(cursor: Cursor) -> Wrapping | None:
    """Walk over the object at the cursor; return it, or None where something follows it.

    Raises:
        SlidepackError: DATA-NOT-JSON, where the text stops being JSON.
    """
    cursor.peek()
    line = cursor.line
    fields: dict[str, _Field] = {}
    for index, name in enumerate(_walk_names(cursor)):
        field = _Field(index)
        if cursor.peek() == "[":
            field.is_list = True
            for item in walk_array(cursor):
                field.add(item.value)
        else:
            cursor.take_value()
        if index < _MAX_FIELDS:
            fields[name] = field
        else:
            fields.clear()
    return None if cursor.peek() else Wrapping(line, fields)


def unwrap_stream(
    wrapping: Wrapping, open_reader: OpenReader, name: str, notes: list[str]
) -> Iterator[RawRow]:
    """Yield the rows of a file that is one object; reads it again, piece by piece."""
    container = wrapping.container(name)
    with ExitStack() as stack:
        if container is not None:
            notes.append(wrapping.container_note(container))
            cursor = Cursor(stack.enter_context(open_reader()), name)
            items = _walk_field(cursor, wrapping.fields[container].index)
            for number, item in enumerate(items, start=1):
                yield RawRow(number, item.value)
        elif wrapping.is_table() and len(wrapping.fields) <= _MAX_STREAMS:
            notes.append(_TABLE_NOTE)
            cursors = [Cursor(stack.enter_context(open_reader()), name) for _ in wrapping.fields]
            columns = [
                _walk_field(cursor, field.index)
                for cursor, field in zip(cursors, wrapping.fields.values(), strict=True)
            ]
            for number, cells in enumerate(zip(*columns, strict=True), start=1):
                values = [cell.value for cell in cells]
                yield RawRow(number, dict(zip(wrapping.fields, values, strict=True)))
        else:
            cursor = Cursor(stack.enter_context(open_reader()), name)
            cursor.peek()
            value = cursor.take_value()
            assert isinstance(value, dict)
            yield from _unwrap_row(RawRow(wrapping.line, value), value, name, notes)


def _walk_names(cursor: Cursor) -> Iterator[str]:
    """Yield the names of the object at the cursor, each with the cursor before its value."""
    cursor.step()
    if cursor.peek() != "}":
        while True:
            if cursor.peek() != '"':
                raise cursor.error("a name in quotation marks is missing")
            name = cursor.take_value()
            assert isinstance(name, str)
            if cursor.peek() != ":":
                raise cursor.error("a colon is missing")
            cursor.step()
            yield name
            if not cursor.goes_on("}", "object"):
                break
    cursor.step()


def _walk_field(cursor: Cursor, wanted: int) -> Iterator[RawRow]:
    cursor.peek()
    for index, _ in enumerate(_walk_names(cursor)):
        cursor.peek()
        if index == wanted:
            yield from walk_array(cursor)
            return
        cursor.take_value()


def unwrap(
    rows: Iterator[RawRow | Reject], name: str, notes: list[str]
) -> Iterator[RawRow | Reject]:
    """Pass the rows of JSON lines on; where the only row holds all rows, yield those."""
    first = next(rows, None)
    if first is None:
        return
    second = next(rows, None)
    if second is None and isinstance(first, RawRow) and isinstance(first.value, dict):
        yield from _unwrap_row(first, first.value, name, notes)
        return
    yield first
    if second is not None:
        yield second
    yield from rows


def _unwrap_row(
    row: RawRow, value: dict[str, object], name: str, notes: list[str]
) -> Iterator[RawRow]:
    fields = {}
    for index, (field, content) in enumerate(value.items()):
        fields[field] = _Field(index, is_list=isinstance(content, list))
        for item in content if isinstance(content, list) else ():
            fields[field].add(item)
    wrapping = Wrapping(row.line, fields)
    container = wrapping.container(name)
    if container is not None:
        notes.append(wrapping.container_note(container))
        items = value[container]
        assert isinstance(items, list)
        for number, item in enumerate(items, start=1):
            yield RawRow(number, item)
    elif wrapping.is_table():
        notes.append(_TABLE_NOTE)
        columns = [column for column in value.values() if isinstance(column, list)]
        for number, cells in enumerate(zip(*columns, strict=True), start=1):
            yield RawRow(number, dict(zip(value, cells, strict=True)))
    else:
        yield row


def _ambiguous(file_name: str, lists: dict[str, _Field]) -> SlidepackError:
    shown = [
        f"{clip(name, 40)} ({field.num_items} {'item' if field.num_items == 1 else 'items'})"
        for name, field in list(lists.items())[:_SHOWN_FIELDS]
    ]
    more = ", …" if len(lists) > _SHOWN_FIELDS else ""
    return SlidepackError(
        "DATA-AMBIGUOUS",
        "The file holds more than one list of rows.",
        why=f"{file_name}: {', '.join(shown)}{more}",
        fix="Save the list to train on as a file of its own, and another one, if it is meant for "
        "that, as the held-out file.",
    )
