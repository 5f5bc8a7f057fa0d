"""Reads a data file row by row, with line numbers, in bounded memory.

Bytes first (compression, signatures, byte-order marks), then shape (array, lines, one object,
table, columns of Parquet, plain text). No value is interpreted here: numbers and cells stay as they
are written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.csv_table import read_table
from slidepack.engine.data.encoding import (
    REPLACE,
    Recoded,
    TextReader,
    guess_encoding,
    sniff_encoding,
    told_encoding,
)
from slidepack.engine.data.json_array import Cursor, JsonError, RawRow, read_array
from slidepack.engine.data.json_lines import read_lines
from slidepack.engine.data.kinds import (
    Sample,
    is_more_than_one_line,
    kind_of,
    refuse_binary,
    refuse_markup,
    refuse_odd_text,
)
from slidepack.engine.data.opening import CHUNK_BYTES, ByteStream, Source, empty
from slidepack.engine.data.parquet import STREAM_START, read_arrow, read_parquet
from slidepack.engine.data.plain_text import TextMode, read_text
from slidepack.engine.data.rows import Reject, clip
from slidepack.engine.data.unwrapping import unwrap, unwrap_stream
from slidepack.engine.data.wrapping import survey_object

__all__ = ["RawRow", "TextMode", "read_rows"]

_HEAD_BYTES: Final = 1 << 10
_SAMPLE_CHARS: Final = 1 << 18

Rows = Iterator[RawRow | Reject]


def read_rows(
    path: Path,
    notes: list[str] | None = None,
    *,
    text_mode: TextMode | None = None,
    encoding: str | None = None,
    on_bytes: Callable[[int], None] | None = None,
    name: str | None = None,
) -> Rows:
    """Yield the rows of a data file in order; a row that cannot be read becomes a `Reject`.

    Args:
        path: JSON lines, JSON, CSV, TSV, Parquet, Arrow or plain text; gzip and zstd of these.
        notes: gets a sentence for whatever the user should know about how the file was read; some
            are known only after the last row.
        text_mode: what a row of a plain text is; None takes a text for a document, and asks where
            the name of the file is none of a text.
        encoding: one of `ENCODINGS`; None finds it out.
        on_bytes: is told how many bytes of the file have been read.
        name: what the user calls the file, for messages; None for the path's own name.

    Raises:
        SlidepackError: DATA-NOT-FOUND, DATA-EMPTY, DATA-FORMAT-UNKNOWN, DATA-ENCODING,
            DATA-NOT-JSON for what breaks off within JSON, DATA-CUT-OFF for a damaged file,
            DATA-AMBIGUOUS for one object with several lists of rows, or a text of another name.
    """
    told = [] if notes is None else notes
    source = Source(path, on_bytes, name)
    found_any = False
    only_turns = True
    for row in _open_rows(source, text_mode, encoding, told):
        found_any = True
        if isinstance(row, Reject):
            only_turns = False
            yield row
        elif row.name_twice is not None:
            only_turns = False
            yield _twice(row.line, row.name_twice)
        else:
            only_turns = only_turns and _is_turns(row.value)
            yield row
    source.tell(source.size)
    if source.has_garbage:
        told.append("Bytes behind the packed data are not gzip and were not read.")
    if not found_any:
        raise empty(source.name, "holds no row")
    if only_turns:
        raise SlidepackError(
            "DATA-FORMAT-UNKNOWN",
            "The rows are arrays of messages, not objects.",
            why=f"{source.name}: every row is an array of turns",
            fix='Write each row as {"messages": […]}.',
        )


def _open_rows(
    source: Source, mode: TextMode | None, encoding: str | None, notes: list[str]
) -> Rows:
    with source.open() as stream:
        head = _read_head(stream)
    if not source.compression:
        if head.startswith(b"PAR1"):
            return read_parquet(source, notes)
        if head.startswith((b"ARROW1", STREAM_START)):
            return read_arrow(source, notes, head.startswith(STREAM_START))
    refuse_binary(source, head)
    file = _TextFile(source, encoding, head, notes)
    sample = file.sample()
    refuse_markup(source, sample)
    match kind_of(source, sample):
        case "array":
            return file.array()
        case "lines":
            return file.lines(sample)
        case "table":
            file.guess()
            return file.table()
        case "text":
            if mode is None:
                refuse_odd_text(source)
            file.guess()
            return file.text(mode or "document")


def _read_head(stream: ByteStream) -> bytes:
    head = b""
    while len(head) < _HEAD_BYTES and (data := stream.read(_HEAD_BYTES - len(head))):
        head += data
    return head


class _TextFile:
    """A file of text in a known encoding, and the ways to read it."""

    def __init__(self, source: Source, encoding: str | None, head: bytes, notes: list[str]) -> None:
        self._source = source
        self._notes = notes
        self._may_guess = False
        if encoding is not None:
            self._encoding = told_encoding(encoding, head)
            return
        self._encoding = sniff_encoding(head)
        self._may_guess = self._encoding == "utf-8"
        if self._encoding == "utf-8-sig":
            notes.append("The file starts with a byte-order mark, which was skipped.")
        elif self._encoding != "utf-8":
            notes.append(f"The file is {self._encoding[:6].upper()} and was read as such.")

    def sample(self) -> Sample:
        """Return the text from its first character that is not white space on.

        Raises:
            SlidepackError: DATA-EMPTY.
        """
        encoding = REPLACE if self._is_utf8() else self._encoding
        with self._source.open() as stream:
            reader = TextReader(stream, encoding, self._source.name)
            text = ""
            while len(text) < _SAMPLE_CHARS:
                part = reader.read(_SAMPLE_CHARS)
                if not part:
                    break
                text = (text + part).lstrip("\ufeff \t\r\n") if not text else text + part
            else:
                return Sample(text, whole=False)
        if not text:
            raise empty(self._source.name, "holds no text")
        return Sample(text, whole=True)

    def guess(self) -> None:
        """Find out whether a text or table that shows no encoding is UTF-8.

        Raises:
            SlidepackError: DATA-ENCODING.
        """
        if self._may_guess:
            self._encoding = guess_encoding(self._source, self._notes)

    def array(self) -> Rows:
        """Yield the values of one JSON array."""
        with self._reader() as reader:
            yield from self._marked(read_array(reader, self._source.name, self._notes), reader)
            self._notes.extend(reader.notes())

    def lines(self, sample: Sample) -> Rows:
        """Yield the values of JSON lines, or what one object holds."""
        error: JsonError | None = None
        if not is_more_than_one_line(sample):
            try:
                with self._source.open() as stream:
                    # A last line that breaks off within a character is that line's loss only.
                    tolerant = REPLACE if self._is_utf8() else self._encoding
                    survey = TextReader(stream, tolerant, self._source.name)
                    wrapping = survey_object(Cursor(survey, self._source.name))
            except JsonError as found:
                error = found
            else:
                if survey.num_mended and self._encoding != REPLACE:
                    self._refuse_undecodable()
                if wrapping is not None:
                    name = self._source.name
                    rows = unwrap_stream(wrapping, self._reader, name, self._notes)
                    yield from self._marked(rows, survey)
                    self._notes.extend(survey.notes())
                    return
        yield from unwrap(self._json_lines(error), self._source.name, self._notes)

    def _json_lines(self, error: JsonError | None) -> Rows:
        with self._source.open(watched=True) as stream:
            if self._is_utf8():
                yield from read_lines(stream, self._source.name, error)
                return
            reader = TextReader(stream, self._encoding, self._source.name)
            rows = read_lines(Recoded(reader), self._source.name, error)
            yield from self._marked(rows, reader)
            self._notes.extend(reader.notes())

    def table(self) -> Rows:
        """Yield the rows of a table."""
        sample = self.sample()
        with self._reader() as reader:
            parts = (sample.text, sample.whole)
            rows = read_table(reader, self._source.name, parts, self._notes)
            yield from self._marked(rows, reader)
            self._notes.extend(reader.notes())

    def text(self, mode: TextMode) -> Rows:
        """Yield the rows of a plain text."""
        with self._reader() as reader:
            rows = read_text(reader, self._source.name, mode, self._notes)
            yield from self._marked(rows, reader)
            self._notes.extend(reader.notes())

    def _is_utf8(self) -> bool:
        return self._encoding in ("utf-8", "utf-8-sig")

    def _refuse_undecodable(self) -> None:
        with self._source.open() as stream:
            reader = TextReader(stream, self._encoding, self._source.name)
            while reader.read(CHUNK_BYTES):
                pass

    def _marked(self, rows: Rows, reader: TextReader) -> Rows:
        """Mark the rows in which bytes were replaced."""
        if self._encoding != REPLACE:
            yield from rows
            return
        for row in rows:
            if isinstance(row, RawRow) and reader.num_mended and _holds_replaced(row.value):
                yield msgspec.structs.replace(row, repairs=("encoding",))
            else:
                yield row

    @contextmanager
    def _reader(self) -> Iterator[TextReader]:
        with self._source.open(watched=True) as stream:
            yield TextReader(stream, self._encoding, self._source.name)


def _twice(line: int, name: str) -> Reject:
    detail = f"{clip(name, 40)} stands twice in one object, with values that differ"
    return Reject(line=line, reason="name-twice", detail=detail)


def _is_turns(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and bool(turn.keys() & {"role", "from"}) for turn in value)
    )


def _holds_replaced(value: object) -> bool:
    if isinstance(value, str):
        return "\ufffd" in value
    if isinstance(value, dict):
        return any(map(_holds_replaced, value)) or any(map(_holds_replaced, value.values()))
    return isinstance(value, list) and any(map(_holds_replaced, value))
