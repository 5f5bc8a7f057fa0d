"""Turns the bytes of a text file into characters: marks, UTF-16 and UTF-32, and what is no UTF-8.

An undecodable byte is named by line and offset. Windows text is guessed by one fixed rule, and
said so.
"""

import codecs
import io
import re
from collections.abc import Iterator
from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.opening import CHUNK_BYTES, ByteStream, Source
from slidepack.engine.data.rows import clip

REPLACE: Final = "utf-8-replace"
"""UTF-8 in which every byte that is none becomes U+FFFD."""
ENCODINGS: Final = (
    "utf-8", REPLACE, "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be",
    "cp1252", "latin-1", "iso-8859-15", "cp1250", "cp1251", "koi8-r", "cp932", "shift_jis",
    "euc_jp", "gbk", "gb18030", "big5", "euc_kr", "cp949",
)  # fmt: skip
"""What a user may say that a file is."""

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ZEROS: Final = (
    # Without a mark: where the zeros stand beside the first characters of a Western script.
    (re.compile(rb"(?:[^\0]\0\0\0){1,4}", re.DOTALL), "utf-32-le"),
    (re.compile(rb"(?:\0\0\0[^\0]){1,4}", re.DOTALL), "utf-32-be"),
    (re.compile(rb"(?:[^\0]\0){1,4}", re.DOTALL), "utf-16-le"),
    (re.compile(rb"(?:\0[^\0]){1,4}", re.DOTALL), "utf-16-be"),
)
_JSON_STARTS: Final = (b"{", b"[")
_SURE_CHARACTERS: Final = 4
"""JSON starts with a bracket, which suffices; other text must show the zeros this often."""

_ESCAPED: Final = re.compile("[\udc80-\udcff]")
_HIGH: Final = re.compile(rb"[\x80-\xff]")
_HIGH_RUN: Final = re.compile(rb"[\x80-\xff]{4}")
_NOT_CP1252: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f\x7f\x81\x8d\x8f\x90\x9d]")
_TYPICAL: Final = re.compile(
    rb"[\xc0-\xd6\xd8-\xf6\xf8-\xff\x80\x82\x84\x85\x8a\x8c\x8e\x91-\x97\x99\x9a\x9c\x9e\x9f"
    rb"\xa0\xa3\xa7\xa9\xab\xae\xb0\xb2\xb4\xb5\xb7\xb9\xbb\xbd\xbf]"
)
"""Letters, quotation marks, dashes, currencies: what high bytes stand for in Western prose."""


def sniff_encoding(head: bytes) -> str:
    """Return the encoding that the first bytes show; UTF-8 where they show none."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    for pattern, encoding in _ZEROS:
        found = pattern.match(head)
        if found is None:
            continue
        num_characters = len(found[0]) // (4 if "32" in encoding else 2)
        if num_characters >= _SURE_CHARACTERS or head.lstrip(b"\0")[:1] in _JSON_STARTS:
            return encoding
    return "utf-8"


def told_encoding(encoding: str, head: bytes) -> str:
    """Return the codec for an encoding that the user names.

    Raises:
        SlidepackError: DATA-ENCODING, naming those that there are.
    """
    known = encoding.lower()
    if known not in ENCODINGS:
        raise SlidepackError(
            "DATA-ENCODING",
            f"There is no encoding called {clip(encoding)}.",
            fix=f"Use one of {', '.join(ENCODINGS)}.",
        )
    if known in ("utf-16", "utf-32") and sniff_encoding(head) != known:
        # Without a mark, these codecs refuse or take the machine's own order.
        return f"{known}-le"
    return known


class TextReader:
    """Reads characters from a stream of bytes; line ends become newlines."""

    def __init__(self, stream: ByteStream, encoding: str, name: str) -> None:
        """Read `stream` as `encoding`; `name` stands in errors."""
        self._stream = stream
        self._name = name
        self._encoding = encoding.removesuffix("-sig")
        self._replaces = encoding == REPLACE
        # The codec that skips a mark miscounts the bytes behind it.
        codec = "utf-8" if encoding in ("utf-8-sig", REPLACE) else encoding
        self._at_start = True
        errors = "surrogateescape" if self._replaces else "strict"
        self._decoder = codecs.getincrementaldecoder(codec)(errors)
        self._newlines = io.IncrementalNewlineDecoder(None, translate=True)
        self._offset = 0
        self._line = 1
        self.num_mended = 0
        """Lines in which bytes were replaced."""
        self.first_mended = 0
        self._last_mended = 0

    def read(self, size: int) -> str:
        """Return about `size` characters, and "" at the end only.

        Raises:
            SlidepackError: DATA-ENCODING.
        """
        while True:
            data = self._stream.read(size)
            pending = len(self._decoder.getstate()[0])
            try:
                text = self._decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                before = error.object[: error.start].decode(error.encoding, "replace")
                line = self._line + self._newlines.decode(before, final=True).count("\n")
                offset = self._offset - pending + error.start
                raise encoding_error(
                    self._name, self._encoding, line, offset, error.reason
                ) from error
            self._offset += len(data)
            if self._at_start and text:
                text = text.removeprefix("\ufeff")
                self._at_start = False
            text = self._newlines.decode(text, final=not data)
            if self._replaces and not text.isascii():
                text = self._mend(text)
            self._line += text.count("\n")
            if text or not data:
                return text

    def notes(self) -> list[str]:
        """Return what the user should know after all has been read."""
        if not self.num_mended:
            return []
        return [
            f"Lines in which bytes that are not UTF-8 became U+FFFD: {self.num_mended}, "
            f"the first is line {self.first_mended}."
        ]

    def _mend(self, text: str) -> str:
        counted = 0
        line = self._line
        for found in _ESCAPED.finditer(text):
            line += text.count("\n", counted, found.start())
            counted = found.start()
            if line != self._last_mended:
                self.num_mended += 1
                self.first_mended = self.first_mended or line
                self._last_mended = line
        return _ESCAPED.sub("\ufffd", text)


class Recoded:
    """The characters of a reader as a stream of UTF-8."""

    def __init__(self, reader: TextReader) -> None:
        """Wrap `reader`."""
        self._reader = reader

    def read(self, size: int, /) -> bytes:
        """Return about `size` bytes, and b"" at the end only."""
        return self._reader.read(size).encode()


def text_lines(reader: TextReader, limit: int) -> Iterator[str | None]:
    """Yield lines with their newline; None stands for one that is longer than `limit`."""
    parts: list[str] = []
    length = 0
    while text := reader.read(CHUNK_BYTES):
        # Not `splitlines`: it splits at characters that end no line in a file.
        *whole, rest = text.split("\n")
        for line in whole:
            if length + len(line) > limit:
                yield None
            else:
                yield f"{''.join(parts)}{line}\n"
            parts.clear()
            length = 0
        length += len(rest)
        if length > limit:
            parts.clear()
        elif rest:
            parts.append(rest)
    if length:
        yield None if length > limit else "".join(parts)


class _Survey(msgspec.Struct):
    """What the bytes of a file that is no UTF-8 look like."""

    high: int = 0
    typical: int = 0
    words: int = 0
    runs: int = 0
    controls: bool = False
    multibyte: int = 0

    def is_western(self) -> bool:
        """Return whether the file is surely Windows text of a Western language."""
        return (
            not self.controls
            and not self.multibyte
            and self.typical >= 0.8 * self.high
            and self.high <= 0.25 * self.words
            and self.runs * 50 <= self.high
        )


def guess_encoding(source: Source, notes: list[str]) -> str:
    """Return `utf-8` where a text is valid UTF-8, or `cp1252` where it can be nothing else.

    Raises:
        SlidepackError: DATA-ENCODING, where it is neither.
    """
    if _is_utf8(source):
        return "utf-8"
    survey, preview = _survey(source)
    try:
        with source.open() as stream:
            reader = TextReader(stream, "utf-8", source.name)
            while reader.read(CHUNK_BYTES):
                pass
    except SlidepackError as error:
        if error.report.code != "DATA-ENCODING" or not survey.is_western():
            raise
        notes.append(
            f"The file is not UTF-8 ({error.report.why}). "
            f"It was read as cp1252, Windows text: {preview}"
        )
    return "cp1252"


def _is_utf8(source: Source) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with source.open() as stream:
        try:
            while chunk := stream.read(CHUNK_BYTES):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def _survey(source: Source) -> tuple[_Survey, str]:
    survey = _Survey()
    preview = ""
    with source.open() as stream:
        while chunk := stream.read(CHUNK_BYTES):
            survey.controls |= _NOT_CP1252.search(chunk) is not None
            num_high = len(_HIGH.findall(chunk))
            survey.high += num_high
            survey.typical += len(_TYPICAL.findall(chunk))
            survey.words += len(chunk) - chunk.count(b" ")
            survey.runs += len(_HIGH_RUN.findall(chunk))
            # What is no UTF-8 becomes U+FFFD: any other character came from several bytes.
            decoded = chunk.decode("utf-8", "replace")
            survey.multibyte += sum(c > "\x7f" and c != "\ufffd" for c in decoded)
            first = _HIGH.search(chunk)
            if first and not preview:
                near = chunk[max(0, first.start() - 30) : first.start() + 50]
                preview = clip(near.decode("cp1252", "replace"))
    return survey, preview


def encoding_error(name: str, encoding: str, line: int, offset: int, reason: str) -> SlidepackError:
    """Return DATA-ENCODING for the byte at `offset`, on `line`."""
    if encoding == "utf-8":
        fix = (
            "Save the file as UTF-8, or name its encoding: `--encoding cp1252` for Windows text, "
            f"`--encoding {REPLACE}` to put U+FFFD for what is broken."
        )
    elif encoding.startswith("utf-"):
        fix = "Copy or download the file again, in case it is cut off, or save it as UTF-8."
    else:
        fix = "Save the file as UTF-8, or name another encoding with `--encoding`."
    return SlidepackError(
        "DATA-ENCODING",
        f"The file is not valid {encoding.upper()}.",
        why=f"{name}: line {line}, byte {offset}: {reason}",
        fix=fix,
    )
