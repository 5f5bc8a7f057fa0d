"""Walks through JSON that may be larger than the memory, one value at a time."""

import json
import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.encoding import TextReader
from slidepack.engine.data.rows import Number, clip

CHUNK_CHARS: Final = 1 << 20
MAX_VALUE_CHARS: Final = 16 << 20
"""Longest single row; a file whose first bracket never closes must not fill the memory."""
_LARGEST_READ: Final = 4 << 20
"""A long value is tried again whenever so much more of it has been read."""
JSON_SPACE: Final = " \t\r\n\ufeff"
"""White space between values; a byte-order mark stands where files were joined."""

_LONGEST_WORD: Final = 16
"""`-Infinity` and `\\uD83D\\uDE42` are shorter: an error further from the end of a chunk is one."""

STRICT_DECODER: Final = json.JSONDecoder(
    parse_float=Number, parse_int=Number, parse_constant=Number
)
"""Refuses a newline in a string: so a quote that is never closed is found on its own line."""

_ROWS_NOTE: Final = "The rows do not stand on lines of their own; line numbers count the rows."
_SPACES: Final = re.compile(f"[{JSON_SPACE}]*")
_NEAR: Final = 200
"""How far an explanation looks around a mistake."""
_NUMBER_TAIL: Final = 3
"""A number goes on in the next chunk by at most `e+1` before it is one character longer."""


class RawRow(msgspec.Struct, frozen=True):
    """One parsed value and the line on which it starts."""

    line: int
    value: Any
    repairs: tuple[str, ...] = ()
    """What was mended in it on reading: `encoding`."""


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
        for number, row in enumerate(chain(start, rows), start=1):
            yield RawRow(number, row.value)
    else:
        yield from chain(start, rows)
    following = cursor.peek()
    if following:
        message = "the array has ended and something follows"
        if following == "[":
            message += ': an array; lines are read where each is an object, as {"messages": […]}'
        raise cursor.error(message)


def walk_array(cursor: "Cursor") -> Iterator[RawRow]:
    """Yield the values of the array that starts at the cursor, and leave it behind the array.

    Raises:
        SlidepackError: DATA-NOT-JSON, with line and column.
    """
    cursor.peek()
    cursor.step()
    if cursor.peek() != "]":
        while True:
            line = cursor.line
            yield RawRow(line, cursor.take_value())
            if cursor.goes_on("]", "array"):
                continue
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

    def take_value(self) -> object:
        """Return the value at this place and go behind it."""
        chars = CHUNK_CHARS
        while True:
            try:
                value, end = STRICT_DECODER.raw_decode(self._buffer, self._position)
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


def explain(error: json.JSONDecodeError) -> str:
    """Return what is wrong with a value, to stand before or after its place."""
    before = error.doc[max(0, error.pos - _NEAR) : error.pos].rstrip(JSON_SPACE)
    after = error.doc[error.pos : error.pos + _NEAR]
    following = after.lstrip(f"{JSON_SPACE},")[:1]
    if (before.endswith(",") or after.startswith(",")) and following in ("}", "]"):
        return f"a comma stands before {following}"
    return error.msg.removesuffix(" starting at").removesuffix(" at")


def breaks_off(error: json.JSONDecodeError) -> bool:
    """Return whether a value lacks its end, where nothing follows the text."""
    rest = error.doc[error.pos : error.pos + _NEAR]
    return error.msg.startswith("Unterminated string") or not rest.strip()


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
