"""Reads JSON and JSON-lines files row by row, with line numbers, in bounded memory.

Bytes first (byte-order marks, UTF-8), then shape (array, lines, one object). No value is
interpreted here.
"""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import Reject, clip

_CHUNK_CHARS: Final = 1 << 20
_MAX_VALUE_CHARS: Final = 64 << 20
"""Longest single row; a file whose first bracket never closes must not fill the memory."""

_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_BINARY_MAGIC: Final = {
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"GGUF": "a GGUF model",
    b"\x89PNG": "a picture",
    b"%PDF": "a PDF",
}


class RawRow(msgspec.Struct, frozen=True):
    """One parsed value and the line on which it starts."""

    line: int
    value: Any


def read_rows(path: Path) -> Iterator[RawRow | Reject]:
    """Yield the rows of a JSON or JSON-lines file in order; a bad JSON line becomes a `Reject`.

    Raises:
        SlidepackError: DATA-NOT-FOUND, DATA-EMPTY, DATA-FORMAT-UNKNOWN, DATA-ENCODING or, for an
            array that breaks off or a file without any JSON, DATA-NOT-JSON.
    """
    encoding = _sniff(path)
    try:
        with path.open(encoding=encoding, newline=None) as file:
            first = _first_character(file)
            file.seek(0)
            if first == "":
                raise _empty(path)
            yield from _read_array(file, path) if first == "[" else _read_lines(file, path)
    except UnicodeDecodeError as error:
        raise _encoding_error(path, error) from error


def _sniff(path: Path) -> str:
    try:
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise SlidepackError(
            "DATA-NOT-FOUND",
            "The data file cannot be opened.",
            why=f"{path}: {error.strerror}",
            fix="Check the path.",
        ) from error
    if not head.strip():
        raise _empty(path)
    for magic, name in _BINARY_MAGIC.items():
        if head.startswith(magic):
            raise SlidepackError(
                "DATA-FORMAT-UNKNOWN",
                f"This is {name}, which is not read yet.",
                why=f"{path.name} starts with {head[:4]!r}",
                fix="Save the rows as JSON lines: one JSON object a line.",
            )
    return next((encoding for bom, encoding in _BOMS if head.startswith(bom)), "utf-8")


def _first_character(file: TextIO) -> str:
    while chunk := file.read(_CHUNK_CHARS):
        if stripped := chunk.lstrip():
            return stripped[0]
    return ""


def _read_lines(file: TextIO, path: Path) -> Iterator[RawRow | Reject]:
    parsed_any = False
    first_error = ""
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            detail = f"{error.msg} at column {error.colno}: {clip(line)}"
            first_error = first_error or f"line {number}: {detail}"
            whole = None if parsed_any else _whole_object(path, file)
            if whole is not None:
                yield RawRow(1, whole)
                return
            yield Reject(line=number, reason="not-json", detail=detail)
            continue
        except RecursionError:
            yield Reject(line=number, reason="not-json", detail="nested too deeply")
            continue
        parsed_any = True
        yield RawRow(number, value)
    if not parsed_any:
        raise _not_json(path, first_error)


def _whole_object(path: Path, file: TextIO) -> object | None:
    """Return the value of a file that is one pretty-printed object, or None where it is not."""
    if path.stat().st_size > _MAX_VALUE_CHARS:
        return None
    try:
        with path.open(encoding=file.encoding, newline=None) as again:
            value: object = json.load(again)
    except (json.JSONDecodeError, RecursionError):
        return None
    return value


def _read_array(file: TextIO, path: Path) -> Iterator[RawRow]:
    decoder = json.JSONDecoder()
    buffer = file.read(_CHUNK_CHARS).lstrip("\ufeff")
    line = 1
    skipped = buffer[: buffer.index("[") + 1]
    line += skipped.count("\n")
    buffer = buffer[len(skipped) :]
    expects_value = True
    while True:
        stripped = buffer.lstrip()
        line += buffer[: len(buffer) - len(stripped)].count("\n")
        buffer = stripped
        if not buffer:
            buffer = file.read(_CHUNK_CHARS)
            if not buffer:
                raise _not_json(path, f"the array that starts the file never ends (line {line})")
        elif buffer[0] == "]":
            return
        elif buffer[0] == "," and not expects_value:
            buffer = buffer[1:]
            expects_value = True
        elif not expects_value:
            raise _not_json(path, f"line {line}: a comma is missing before {clip(buffer)}")
        else:
            value, length, buffer = _next_value(decoder, buffer, file, path, line)
            yield RawRow(line, value)
            line += buffer[:length].count("\n")
            buffer = buffer[length:]
            expects_value = False


def _next_value(
    decoder: json.JSONDecoder, buffer: str, file: TextIO, path: Path, line: int
) -> tuple[object, int, str]:
    """Return the value at the start of `buffer`, its length, and the buffer, grown as needed."""
    want = _CHUNK_CHARS
    while True:
        try:
            value, length = decoder.raw_decode(buffer)
            # A number at the very end of the buffer may go on in the next chunk.
            if length < len(buffer) or not (more := file.read(want)):
                return value, length, buffer
            buffer += more
        except json.JSONDecodeError as error:
            more = file.read(want)
            if not more or len(buffer) > _MAX_VALUE_CHARS:
                where = line + error.lineno - 1
                near = clip(buffer[max(0, error.pos - 20) : error.pos + 40])
                raise _not_json(
                    path, f"line {where}, column {error.colno}: {error.msg} near {near}"
                ) from error
            buffer += more
            want *= 2
        except RecursionError as error:
            raise _not_json(path, f"line {line}: a value is nested too deeply") from error


def _empty(path: Path) -> SlidepackError:
    return SlidepackError(
        "DATA-EMPTY",
        "The file is empty.",
        why=f"{path.name} holds no text",
        fix="Choose a file with at least one row.",
    )


def _not_json(path: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "DATA-NOT-JSON",
        "The file is not JSON.",
        why=f"{path.name}: {why}",
        fix="Save the rows as JSON lines (one object a line) or as one JSON array.",
    )


def _encoding_error(path: Path, error: UnicodeDecodeError) -> SlidepackError:
    offset, line = _first_bad_byte(path, error.encoding)
    return SlidepackError(
        "DATA-ENCODING",
        f"The file is not valid {error.encoding.upper()}.",
        why=f"{path.name}: line {line}, byte {offset}: {error.reason}",
        fix="Save the file as UTF-8.",
    )


def _first_bad_byte(path: Path, encoding: str) -> tuple[int, int]:
    """Return (offset, line) of the first undecodable byte; the text layer knows only its chunk."""
    decoder = codecs.getincrementaldecoder(encoding)()
    offset, line = 0, 1
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_CHARS):
            pending = len(decoder.getstate()[0])
            try:
                line += decoder.decode(chunk).count("\n")
            except UnicodeDecodeError as error:
                good = error.object[: error.start]
                return offset - pending + error.start, line + good.count(b"\n")
            offset += len(chunk)
    return offset, line
