"""Reads plain text and Markdown: as one document, by paragraphs or by lines."""

from collections.abc import Iterator
from typing import Final, Literal

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.encoding import TextReader, text_lines
from slidepack.engine.data.json_array import RawRow
from slidepack.engine.data.opening import CHUNK_BYTES
from slidepack.engine.data.rows import Reject

MAX_TEXT_CHARS: Final = 64 << 20
"""Longest row; unlike JSON, a text takes no more memory than its characters."""

TextMode = Literal["document", "paragraph", "line"]
_TOLD: Final[dict[TextMode, str]] = {
    "document": "The file was read as plain text, as one document; `--text-mode paragraph` or "
    "`--text-mode line` makes more rows of it.",
    "paragraph": "The file was read as plain text, one row a paragraph.",
    "line": "The file was read as plain text, one row a line.",
}


def read_text(
    reader: TextReader, name: str, mode: TextMode, notes: list[str]
) -> Iterator[RawRow | Reject]:
    """Yield the rows of a text, each `{"text": …}`, with the line on which it starts.

    Raises:
        SlidepackError: DATA-FORMAT-UNKNOWN, where one document is too long for a row.
    """
    notes.append(_TOLD[mode])
    match mode:
        case "document":
            yield _document(reader, name)
        case "paragraph":
            yield from _paragraphs(reader)
        case "line":
            yield from _lines(reader, notes)


def _document(reader: TextReader, name: str) -> RawRow:
    parts: list[str] = []
    length = 0
    while part := reader.read(CHUNK_BYTES):
        length += len(part)
        if length > MAX_TEXT_CHARS:
            raise SlidepackError(
                "DATA-FORMAT-UNKNOWN",
                "The text is too long to be one row.",
                why=f"{name} holds more than {MAX_TEXT_CHARS >> 20} Mi characters",
                fix="Read it by paragraphs or by lines instead: `--text-mode paragraph` or "
                "`--text-mode line`.",
            )
        parts.append(part)
    return RawRow(1, {"text": "".join(parts)})


def _paragraphs(reader: TextReader) -> Iterator[RawRow | Reject]:
    lines: list[str] = []
    length = 0
    start = 0
    for number, line in enumerate(text_lines(reader, MAX_TEXT_CHARS), start=1):
        if line is not None and not line.strip():
            if length:
                yield _paragraph(start, lines, length)
            lines.clear()
            length = 0
            continue
        start = start if length else number
        length += MAX_TEXT_CHARS + 1 if line is None else len(line)
        if line is None or length > MAX_TEXT_CHARS:
            lines.clear()
        else:
            lines.append(line)
    if length:
        yield _paragraph(start, lines, length)


def _paragraph(start: int, lines: list[str], length: int) -> RawRow | Reject:
    if length > MAX_TEXT_CHARS:
        return _too_big(start)
    return RawRow(start, {"text": "".join(lines).removesuffix("\n")})


def _lines(reader: TextReader, notes: list[str]) -> Iterator[RawRow | Reject]:
    num_blank = 0
    for number, line in enumerate(text_lines(reader, MAX_TEXT_CHARS), start=1):
        if line is None:
            yield _too_big(number)
        elif line.strip():
            yield RawRow(number, {"text": line.removesuffix("\n")})
        else:
            num_blank += 1
    if num_blank:
        notes.append(f"Blank lines that were skipped: {num_blank}.")


def _too_big(line: int) -> Reject:
    detail = f"longer than {MAX_TEXT_CHARS >> 20} Mi characters"
    return Reject(line=line, reason="too-big", detail=detail)
