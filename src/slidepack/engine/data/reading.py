"""Reads JSON and JSON-lines files row by row, with line numbers, in bounded memory.

Bytes first (byte-order marks, UTF-8), then shape (array, lines, one object). No value is
interpreted here; numbers stay as they are written.
"""

import codecs
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.json_array import (
    CHUNK_CHARS,
    JSON_SPACE,
    MAX_VALUE_CHARS,
    STRICT_DECODER,
    RawRow,
    not_json,
    read_array,
)
from slidepack.engine.data.rows import Number, Reject, clip
from slidepack.engine.data.wrapping import unwrap

_LINE_DECODER: Final = json.JSONDecoder(
    parse_float=Number, parse_int=Number, parse_constant=Number, strict=False
)
"""Takes raw tabs and other control characters in strings: within a line they do no harm."""

_SIGNATURES: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    # Without a mark: JSON starts with a bracket, and no UTF-8 text has a zero beside it.
    (b"{\0", "utf-16-le"),
    (b"[\0", "utf-16-le"),
    (b"\0{", "utf-16-be"),
    (b"\0[", "utf-16-be"),
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


def read_rows(path: Path, notes: list[str] | None = None) -> Iterator[RawRow | Reject]:
    """Yield the rows of a JSON or JSON-lines file in order; a bad JSON line becomes a `Reject`.

    Args:
        path: the file.
        notes: gets a sentence for whatever the user should know about how the file was read.

    Raises:
        SlidepackError: DATA-NOT-FOUND, DATA-EMPTY, DATA-FORMAT-UNKNOWN, DATA-ENCODING or, for an
            array that breaks off or a file without any JSON, DATA-NOT-JSON.
    """
    told = [] if notes is None else notes
    encoding = _sniff(path)
    if encoding == "utf-8-sig":
        told.append("The file starts with a byte-order mark, which was skipped.")
    elif encoding != "utf-8":
        told.append(f"The file is {encoding[:6].upper()} and was read as such.")
    try:
        with path.open(encoding=encoding, newline=None) as file:
            first = _first_character(file)
            file.seek(0)
            if first == "":
                raise _empty(path, "holds no text")
            rows: Iterator[RawRow | Reject] = (
                read_array(file, path) if first == "[" else unwrap(_read_lines(file, path), told)
            )
            found_any = False
            for row in rows:
                found_any = True
                yield row
            if not found_any:
                raise _empty(path, "holds no row")
    except UnicodeDecodeError as error:
        raise _encoding_error(path, error) from error


def _sniff(path: Path) -> str:
    """Return the encoding; refuse what is no readable text file."""
    try:
        if path.exists() and not path.is_file():
            raise _not_found(f"{path} is not a file")
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise _not_found(f"{path}: {error.strerror}") from error
    for magic, name in _BINARY_MAGIC.items():
        if head.startswith(magic):
            raise SlidepackError(
                "DATA-FORMAT-UNKNOWN",
                f"This is {name}, which is not read yet.",
                why=f"{path.name} starts with {head[:4]!r}",
                fix="Save the rows as JSON lines: one JSON object a line.",
            )
    return next((name for start, name in _SIGNATURES if head.startswith(start)), "utf-8")


def _first_character(file: TextIO) -> str:
    while chunk := file.read(CHUNK_CHARS):
        if stripped := chunk.lstrip(JSON_SPACE):
            return stripped[0]
    return ""


def _read_lines(file: TextIO, path: Path) -> Iterator[RawRow | Reject]:
    parsed_any = False
    first_error = ""
    for number, line in _numbered_lines(file):
        if line is None:
            detail = f"longer than {MAX_VALUE_CHARS >> 20} Mi characters"
            first_error = first_error or f"line {number}: {detail}"
            yield Reject(line=number, reason="too-big", detail=detail)
            continue
        if not line.strip():
            continue
        try:
            value: object = _LINE_DECODER.decode(line)
        except json.JSONDecodeError as error:
            near = clip(line[max(0, error.pos - 20) : error.pos + 60])
            detail = f"{error.msg} at column {error.colno}, near {near}"
            if not parsed_any and not first_error:
                # Nothing was read so far: perhaps the file is one object over many lines.
                whole = _whole_object(path, file.encoding)
                if isinstance(whole, RawRow):
                    yield whole
                    return
                # Whichever reading got further has found the user's mistake.
                first_error = whole or f"line {number}: {detail}"
            yield Reject(line=number, reason="not-json", detail=detail)
            continue
        except RecursionError:
            detail = "nested too deeply"
            first_error = first_error or f"line {number}: {detail}"
            yield Reject(line=number, reason="not-json", detail=detail)
            continue
        parsed_any = True
        yield RawRow(number, value)
    if first_error and not parsed_any:
        raise not_json(path, first_error)


def _numbered_lines(file: TextIO) -> Iterator[tuple[int, str | None]]:
    """Yield the lines from 1 on; None stands for one that is too long to hold."""
    number = 0
    while line := file.readline(MAX_VALUE_CHARS):
        number += 1
        if len(line) == MAX_VALUE_CHARS and not line.endswith("\n"):
            while (rest := file.readline(CHUNK_CHARS)) and not rest.endswith("\n"):
                pass
            yield number, None
        else:
            # A mark in the middle stands where files were joined.
            yield number, line.removeprefix("\ufeff")


def _whole_object(path: Path, encoding: str) -> RawRow | str:
    """Return the value of a file that is one object over many lines.

    Where it is not, return the place of the error if that lies beyond the first line, else "".
    """
    if path.stat().st_size > MAX_VALUE_CHARS:
        return ""
    with path.open(encoding=encoding, newline=None) as again:
        text = again.read().removeprefix("\ufeff")
    try:
        return RawRow(1, STRICT_DECODER.decode(text))
    except json.JSONDecodeError as error:
        start = len(text) - len(text.lstrip())
        if "\n" not in text[start : error.pos]:
            return ""
        near = clip(text[max(0, error.pos - 20) : error.pos + 40])
        return f"line {error.lineno}, column {error.colno}: {error.msg} near {near}"
    except RecursionError:
        return ""


def _not_found(why: str) -> SlidepackError:
    return SlidepackError(
        "DATA-NOT-FOUND", "The data file cannot be opened.", why=why, fix="Check the path."
    )


def _empty(path: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "DATA-EMPTY",
        "The file is empty.",
        why=f"{path.name} {why}",
        fix="Choose a file with at least one row.",
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
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    offset, line = 0, 1
    with path.open("rb") as file:
        while True:
            chunk = file.read(CHUNK_CHARS)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                text = error.object[: error.start].decode(encoding)
                line += newlines.decode(text, final=True).count("\n")
                return offset - pending + error.start, line
            line += newlines.decode(text).count("\n")
            offset += len(chunk)
            assert chunk, "the text layer has found a bad byte"
