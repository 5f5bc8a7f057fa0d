"""Surveys a file that is one JSON object: a row, or all rows, and in which layout."""

from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.json_array import Cursor, RawRow, walk_array
from slidepack.engine.data.rows import Number, clip

_CONTAINERS: Final = ("data", "train", "rows", "conversations", "examples")
"""Fields of a single object in which files keep their rows."""
_MAX_FIELDS: Final = 1000
"""An object with more of them is no wrapping, nor a table: they are words, or numbers of rows."""
_SHOWN_FIELDS: Final = 10
_TOKENS_FIELD: Final = "input_ids"
"""In a table each cell of it is a list; whole numbers are the tokens of one row."""
SPLIT_NAMES: Final = "columns"
SPLIT_ROWS: Final = "data"
_SPLIT_INDEX: Final = "index"


class _Field(msgspec.Struct):
    """What a field of the outermost object holds, without holding it."""

    index: int
    is_list: bool = False
    is_object: bool = False
    num_items: int = 0
    num_objects: int = 0
    num_lists: int = 0
    num_texts: int = 0
    names: int = 0
    """A hash of the names in an object, in their order."""
    is_by_number: bool = True
    """Whether every name in an object is a number."""
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
        self.num_lists += isinstance(item, list)
        self.num_texts += isinstance(item, str)
        self.num_items += 1

    def add_name(self, name: str) -> None:
        """Count a member of the object."""
        self.names = hash((self.names, name))
        self.is_by_number = self.is_by_number and name.isdecimal()
        self.num_items += 1

    @property
    def may_hold_rows(self) -> bool:
        """Whether an item is an object that may be a row."""
        return self.num_objects > 0 and not self.is_conversation

    @property
    def holds_rows(self) -> bool:
        """Whether every item is an object that may be a row."""
        return 0 < self.num_items == self.num_objects and not self.is_conversation


class Wrapping(msgspec.Struct):
    """An object that makes up the whole file."""

    line: int
    fields: dict[str, _Field] = {}
    num_fields: int = 0
    num_rows_by_number: int = 0
    """Fields whose name is a number and whose content is an object."""
    name_twice: str | None = None
    """A name that stands twice among the fields."""

    def field(self, name: str) -> _Field:
        """Return what is to count the content of one more field."""
        field = _Field(self.num_fields)
        if name in self.fields:
            self.name_twice = name
        if self.num_fields < _MAX_FIELDS:
            self.fields[name] = field
        else:
            self.fields.clear()
        self.num_fields += 1
        return field

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
        """Return whether the fields are columns with a cell for each row."""
        return self.has_numbered_cells() or self._has_listed_cells()

    def has_numbered_cells(self) -> bool:
        """Return whether the fields are columns as pandas writes them: cells by row number."""
        fields = self.fields.values()
        return (
            all(field.is_object and field.num_items and field.is_by_number for field in fields)
            and len({field.names for field in fields}) == 1
        )

    def _has_listed_cells(self) -> bool:
        """Return whether each field is a list of cells; an object is no cell."""
        fields = self.fields.values()
        tokens = self.fields.get(_TOKENS_FIELD)
        return (
            not (tokens and tokens.is_whole_numbers)
            and all(field.is_list and not field.num_objects for field in fields)
            and len({field.num_items for field in fields}) == 1
            and all(field.num_items for field in fields)
        )

    def is_split_table(self) -> bool:
        """Return whether names of columns and rows of cells stand apart, as pandas splits them."""
        if not {SPLIT_NAMES, SPLIT_ROWS} <= self.fields.keys() <= {
            SPLIT_NAMES, SPLIT_ROWS, _SPLIT_INDEX,
        }:  # fmt: skip
            return False
        names, rows = self.fields[SPLIT_NAMES], self.fields[SPLIT_ROWS]
        return 0 < names.num_items == names.num_texts and 0 < rows.num_items == rows.num_lists

    def is_rows_by_number(self) -> bool:
        """Return whether each field is a row, called by its number."""
        return 0 < self.num_fields == self.num_rows_by_number

    def not_read(self, used: tuple[str, ...]) -> str:
        """Return a sentence that names the other fields, with a space before it; "" for none."""
        others = [clip(name, 40) for name in self.fields if name not in used]
        if not others:
            return ""
        more = ", …" if len(others) > _SHOWN_FIELDS else ""
        return f" Not read: {', '.join(others[:_SHOWN_FIELDS])}{more}."


def survey_object(cursor: Cursor) -> Wrapping | None:
    """Walk over the object at the cursor; return it, or None where something follows it.

    Raises:
        SlidepackError: DATA-NOT-JSON, where the text stops being JSON.
    """
    cursor.peek()
    wrapping = Wrapping(cursor.line)
    for name in cursor.walk_names():
        field = wrapping.field(name)
        following = cursor.peek()
        if following == "[":
            field.is_list = True
            for item in walk_array(cursor):
                field.add(item.value)
        elif following == "{":
            field.is_object = True
            wrapping.num_rows_by_number += name.isdecimal()
            for inner in cursor.walk_names():
                field.add_name(inner)
                cursor.take_value()
        else:
            cursor.take_value()
    return None if cursor.peek() else wrapping


def survey_row(row: RawRow, value: dict[str, object]) -> Wrapping:
    """Return what the object is that makes up the row."""
    wrapping = Wrapping(row.line)
    for name, content in value.items():
        field = wrapping.field(name)
        if isinstance(content, list):
            field.is_list = True
            for item in content:
                field.add(item)
        elif isinstance(content, dict):
            field.is_object = True
            wrapping.num_rows_by_number += name.isdecimal()
            for inner in content:
                field.add_name(inner)
    return wrapping


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
