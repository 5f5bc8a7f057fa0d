"""Reads JSON lines: one value a line. A line that is none is one rejected row, not the end."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from slidepack.engine.data.encoding import encoding_error
from slidepack.engine.data.json_array import MAX_VALUE_CHARS, JsonError, RawRow
from slidepack.engine.data.json_values import Decoder, breaks_off, explain
from slidepack.engine.data.opening import CHUNK_BYTES, ByteStream
from slidepack.engine.data.rows import Number, Reject, clip

_FAST_DECODER: Final = msgspec.json.Decoder(float_hook=Number)
"""Keeps fractions as they are written; whole numbers become `int`, which loses nothing but -0."""
_encode: Final = msgspec.json.Encoder().encode
_MINUS_ZERO: Final = re.compile(rb"-0(?![0-9.eE])")


def read_lines(
    stream: ByteStream, name: str, earlier_error: JsonError | None = None
) -> Iterator[RawRow | Reject]:
    """Yield the rows of UTF-8 JSON lines.

    Args:
        stream: the bytes.
        name: stands in errors.
        earlier_error: where the file stopped being one object over many lines.

    Raises:
        SlidepackError: DATA-ENCODING, or DATA-NOT-JSON where no line is JSON.
    """
    parse = _Parser(name).parse
    parsed_any = False
    first_reject: Reject | None = None
    for line in _numbered_lines(stream):
        row = parse(line)
        if isinstance(row, RawRow):
            parsed_any = True
        elif row is None:
            continue
        else:
            first_reject = first_reject or row
        yield row
    if first_reject and not parsed_any:
        # Whichever reading got further has found the user's mistake.
        if earlier_error and earlier_error.line > first_reject.line:
            raise earlier_error
        why = f"line {first_reject.line}: {first_reject.detail}"
        raise JsonError(name, first_reject.line, why)


class _Line(msgspec.Struct, frozen=True):
    """A line without its end, from 1 on, and the byte at which it starts."""

    number: int
    start: int
    text: bytes | None
    """None where it is too long."""
    is_open: bool = False
    """Whether the file ends within it."""


class _Parser:
    """Makes rows of lines."""

    def __init__(self, name: str) -> None:
        """Start; `name` stands in errors."""
        self._name = name
        # Raw tabs and other control characters in strings do no harm within a line.
        self._tolerant = Decoder(strict=False)

    def parse(self, line: _Line) -> RawRow | Reject | None:
        """Return the row of a line, or None for a blank one.

        Raises:
            SlidepackError: DATA-ENCODING.
        """
        text = line.text
        if text is None:
            detail = f"longer than {MAX_VALUE_CHARS >> 20} Mi characters"
            return Reject(line=line.number, reason="too-big", detail=detail)
        if not text:
            return None
        try:
            value = _FAST_DECODER.decode(text)
            is_sure = _holds_all_names(text, value)
        except (msgspec.DecodeError, RecursionError):
            return self._parse_tolerantly(text, line)
        if not is_sure or (b"-0" in text and _MINUS_ZERO.search(text)):
            return self._parse_tolerantly(text, line)
        return RawRow(line.number, value)

    def _parse_tolerantly(self, data: bytes, line: _Line) -> RawRow | Reject | None:
        try:
            # A mark in the middle stands where files were joined.
            text = data.decode().removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            if line.is_open and error.reason == "unexpected end of data":
                near = clip(data[max(0, error.start - 60) : error.start].decode(errors="ignore"))
                detail = f"the file is cut off within a character, behind {near}"
                return Reject(line=line.number, reason="not-json", detail=detail)
            place = line.start + error.start
            raise encoding_error(self._name, "utf-8", line.number, place, error.reason) from error
        if not text.strip():
            return None
        try:
            value = self._tolerant.decode(text)
        except json.JSONDecodeError as error:
            near = clip(text[max(0, error.pos - 20) : error.pos + 60])
            end = ", the line breaks off" if line.is_open and breaks_off(error) else ""
            detail = f"{explain(error)} at column {error.colno}{end}, near {near}"
        except RecursionError:
            detail = "nested too deeply"
        else:
            return RawRow(line.number, value, name_twice=self._tolerant.name_twice)
        return Reject(line=line.number, reason="not-json", detail=detail)


def _holds_all_names(text: bytes, value: Any) -> bool:
    """Return whether no name of an object in the text got lost because it stands there twice.

    The fast decoder keeps the last value in silence. Written anew, the value then has fewer colons;
    they are the same ones otherwise, unless a text hides one as an escape.
    """
    return text.count(b":") == _encode(value).count(b":") and b"\\u003" not in text


def _numbered_lines(stream: ByteStream) -> Iterator[_Line]:
    number = 0
    start = 0
    parts: list[bytes] = []
    length = 0
    held = b""
    at_end = False
    while not at_end:
        data = stream.read(CHUNK_BYTES)
        at_end = not data
        chunk = held + data if held else data
        held = b""
        if chunk.endswith(b"\r") and not at_end:
            # Its newline may come with the next chunk.
            chunk, held = chunk[:-1], b"\r"
        for piece in chunk.splitlines(keepends=True):
            length += len(piece)
            is_too_long = length > MAX_VALUE_CHARS
            if not piece.endswith((b"\n", b"\r")):
                if is_too_long:
                    parts.clear()
                else:
                    parts.append(piece)
                continue
            text = b"".join((*parts, piece)) if parts else piece
            number += 1
            yield _Line(number, start, None if is_too_long else text.rstrip(b"\r\n"))
            start += length
            length = 0
            parts.clear()
    if length:
        rest = None if length > MAX_VALUE_CHARS else b"".join(parts)
        yield _Line(number + 1, start, rest, is_open=True)
