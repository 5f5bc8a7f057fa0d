"""Walks through JSON that may be larger than the memory, one value at a time."""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.encoding import TextReader
from slidepack.engine.data.json_values import JSON_SPACE, Decoder, breaks_off, explain
from slidepack.engine.data.rows import clip

CHUNK_CHARS: Final = 1 << 20
MAX_VALUE_CHARS: Final = 16 << 20
"""Longest single row; a file whose first bracket never closes must not fill the memory."""
_LARGEST_READ: Final = 4 << 20
"""A long value is tried again whenever so much more of it has been read."""
_LONGEST_WORD: Final = 16
"""`-Infinity` and `\\uD83D\\uDE42` are shorter: an error further from the end of a chunk is one."""

_ROWS_NOTE: Final = "The rows do not stand on lines of their own; line numbers count the rows."
_SPACES: Final = re.compile(f"[{JSON_SPACE}]*")
_NUMBER_TAIL: Final = 3
"""A number goes on in the next chunk by at most `e+1` before it is one character longer."""


class RawRow(msgspec.Struct, frozen=True):
    """One parsed value and the line on which it starts."""

    line: int
    value: Any
    repairs: tuple[str, ...] = ()
    """What was mended in it on reading: `encoding`."""
    name_twice: str | None = None
    """A name that stands twice in one of its objects: which value is meant, nobody can tell."""


def read_array(reader: TextReader, name: str, notes: list[str]) -> Iterator[RawRow]:
    """Yield the values of the array that the file holds, and nothing beside it.

    Where the second row starts on the line of the first, lines say nothing: rows are counted.

    Raises:
        SlidepackError: DATA-NOT-JSON, with line and column.
    """
    cursor = Cursor(reader, name)
    rows = walk_array(cursor)
    start = list(islice(rows, 2))
    if len(start) == 2 and start[0].line == start[1].line:
        notes.append(_ROWS_NOTE)
        yield from numbered(chain(start, rows))
    else:
        yield from chain(start, rows)
    following = cursor.peek()
    if following:
        message = "the array has ended and something follows"
        if following == "[":
            message += ': an array; lines are read where each is an object, as {"messages": […]}'
        raise cursor.error(message)


def numbered(rows: Iterable[RawRow]) -> Iterator[RawRow]:
    """Yield the rows with their numbers, from 1 on, as their lines."""
    for number, row in enumerate(rows, start=1):
        yield RawRow(number, row.value, name_twice=row.name_twice)


def walk_array(cursor: "Cursor") -> Iterator[RawRow]:
    """Yield the values of the array that starts at the cursor, and leave it behind the array.

    Raises:
        SlidepackError: DATA-NOT-JSON, with line and column.
    """
    cursor.peek()
    cursor.step()
    if cursor.peek() != "]":
        while True:
            yield cursor.take_row()
            if not cursor.goes_on("]", "array"):
                break
    cursor.step()


class Cursor:
    """A place in a text, by line and column, with the text after it read as needed."""

    def __init__(self, reader: TextReader, name: str) -> None:
        """Start at the start; `name` stands in errors."""
        self._reader = reader
        self._name = name
        self._buffer = ""
        self._position = 0
        self._at_end = False
        # A newline in a string is an error: a quote never closed is found on its own line.
        self._decoder = Decoder(strict=True)
        self.column = 1
        self.line = 1

    def peek(self) -> str:
        """Skip white space and return the next character, or "" at the end of the file."""
        while True:
            spaces = _SPACES.match(self._buffer, self._position)
            assert spaces is not None
            self._advance(spaces.end())
            if self._position < len(self._buffer):
                return self._buffer[self._position]
            if self._at_end:
                return ""
            self._fill(CHUNK_CHARS)

    def step(self) -> None:
        """Go one character on."""
        self._advance(self._position + 1)

    def goes_on(self, closing: str, what: str) -> bool:
        """Go to the next member of an array or object, or stop before its closing bracket."""
        following = self.peek()
        if following == closing:
            return False
        if following != ",":
            raise self.error(
                "a comma is missing" if following else f"the file ends within the {what}"
            )
        self.step()
        if self.peek() == closing:
            raise self.error(f"a comma stands before {closing}")
        return True

    def walk_names(self) -> Iterator[str]:
        """Yield the names of the object at this place, each with the cursor at its value.

        Whoever asks for the next one has gone behind the value.

        Raises:
            SlidepackError: DATA-NOT-JSON, with line and column.
        """
        self.step()
        if self.peek() != "}":
            while True:
                if self.peek() != '"':
                    raise self.error("a name in quotation marks is missing")
                name = self.take_value()
                assert isinstance(name, str)
                if self.peek() != ":":
                    raise self.error("a colon is missing")
                self.step()
                self.peek()
                yield name
                if not self.goes_on("}", "object"):
                    break
        self.step()

    def take_row(self) -> RawRow:
        """Return the value at this place as a row and go behind it."""
        line = self.line
        value = self.take_value()
        return RawRow(line, value, name_twice=self._decoder.name_twice)

    def take_value(self) -> object:
        """Return the value at this place and go behind it."""
        chars = CHUNK_CHARS
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                if not self._may_be_cut(error):
                    message = explain(error)
                    if self._at_end and breaks_off(error):
                        message += ", the file breaks off"
                    self._advance(error.pos)
                    raise self.error(message) from error
                self._check_length(len(self._buffer))
            except RecursionError as error:
                raise self.error("a value is nested too deeply") from error
            else:
                self._check_length(end)
                if self._at_end or len(self._buffer) - end >= _NUMBER_TAIL:
                    self._advance(end)
                    return value
                # It is read anew, and two of it may be too much.
                del value
            self._fill(chars)
            chars = min(2 * chars, _LARGEST_READ)

    def error(self, message: str) -> "JsonError":
        """Return DATA-NOT-JSON for this place."""
        near = clip(self._buffer[max(0, self._position - 20) : self._position + 40])
        return JsonError(
            self._name, self.line, f"line {self.line}, column {self.column}: {message}, near {near}"
        )

    def _check_length(self, end: int) -> None:
        if end - self._position > MAX_VALUE_CHARS:
            raise self.error(f"a value is longer than {MAX_VALUE_CHARS >> 20} Mi characters")

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """Return whether it may be the end of the chunk that breaks the value off."""
        if self._at_end:
            return False
        near_end = len(self._buffer) - error.pos < _LONGEST_WORD
        return near_end or error.msg.startswith("Unterminated string")

    def _advance(self, end: int) -> None:
        newlines = self._buffer.count("\n", self._position, end)
        if newlines:
            self.line += newlines
            self.column = end - self._buffer.rfind("\n", self._position, end)
        else:
            self.column += end - self._position
        self._position = end

    def _fill(self, chars: int) -> None:
        more = self._reader.read(chars)
        self._at_end = not more
        self._buffer = self._buffer[self._position :] + more
        self._position = 0


class JsonError(SlidepackError):
    """DATA-NOT-JSON, with the line on which the text stops being JSON."""

    def __init__(self, name: str, line: int, why: str) -> None:
        """Build the error."""
        super().__init__(
            "DATA-NOT-JSON",
            "The file is not JSON.",
            why=f"{name}: {why}",
            fix="Save the rows as JSON lines (one object a line) or as one JSON array.",
        )
        self.line = line
