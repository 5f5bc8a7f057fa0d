"""Reads the values of one JSON array that may be larger than the memory, one at a time."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import Number, clip

CHUNK_CHARS: Final = 1 << 20
MAX_VALUE_CHARS: Final = 64 << 20
"""Longest single row; a file whose first bracket never closes must not fill the memory."""
JSON_SPACE: Final = " \t\r\n\ufeff"
"""White space between values; a byte-order mark stands where files were joined."""

STRICT_DECODER: Final = json.JSONDecoder(
    parse_float=Number, parse_int=Number, parse_constant=Number
)
"""Refuses a newline in a string: so a quote that is never closed is found on its own line."""

_SPACES: Final = re.compile(f"[{JSON_SPACE}]*")
_NUMBER_TAIL: Final = 3
"""A number goes on in the next chunk by at most `e+1` before it is one character longer."""


class RawRow(msgspec.Struct, frozen=True):
    """One parsed value and the line on which it starts."""

    line: int
    value: Any


def read_array(file: TextIO, path: Path) -> Iterator[RawRow]:
    """Yield the values of the array that the file holds, and nothing beside it.

    Raises:
        SlidepackError: DATA-NOT-JSON, with line and column.
    """
    cursor = _Cursor(file, path)
    cursor.peek()
    cursor.step()
    if cursor.peek() != "]":
        while True:
            line = cursor.line
            yield RawRow(line, cursor.take_value())
            following = cursor.peek()
            if following == "]":
                break
            if following != ",":
                raise cursor.error(
                    "a comma is missing" if following else "the file ends within the array"
                )
            cursor.step()
            if cursor.peek() == "]":
                raise cursor.error("a comma stands before the closing bracket")
    cursor.step()
    if cursor.peek():
        raise cursor.error("the array has ended and something follows")


class _Cursor:
    """A place in a text file, by line and column, with the text after it read as needed."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._buffer = ""
        self._position = 0
        self._at_end = False
        self._column = 1
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

    def take_value(self) -> object:
        """Return the value at this place and go behind it."""
        chars = CHUNK_CHARS
        while True:
            try:
                value, end = STRICT_DECODER.raw_decode(self._buffer, self._position)
            except json.JSONDecodeError as error:
                # The value may only be cut off by the end of the chunk.
                if self._at_end or len(self._buffer) - self._position > MAX_VALUE_CHARS:
                    self._advance(error.pos)
                    raise self.error(error.msg) from error
            except RecursionError as error:
                raise self.error("a value is nested too deeply") from error
            else:
                if self._at_end or len(self._buffer) - end >= _NUMBER_TAIL:
                    self._advance(end)
                    return value
            self._fill(chars)
            chars *= 2

    def error(self, message: str) -> SlidepackError:
        """Return DATA-NOT-JSON for this place."""
        near = clip(self._buffer[max(0, self._position - 20) : self._position + 40])
        return not_json(
            self._path, f"line {self.line}, column {self._column}: {message}, near {near}"
        )

    def _advance(self, end: int) -> None:
        newlines = self._buffer.count("\n", self._position, end)
        if newlines:
            self.line += newlines
            self._column = end - self._buffer.rfind("\n", self._position, end)
        else:
            self._column += end - self._position
        self._position = end

    def _fill(self, chars: int) -> None:
        more = self._file.read(chars)
        self._at_end = not more
        self._buffer = self._buffer[self._position :] + more
        self._position = 0


def not_json(path: Path, why: str) -> SlidepackError:
    """Return the error of a file that is no JSON."""
    return SlidepackError(
        "DATA-NOT-JSON",
        "The file is not JSON.",
        why=f"{path.name}: {why}",
        fix="Save the rows as JSON lines (one object a line) or as one JSON array.",
    )
