"""Tells what a file is by its first bytes, its name and its first characters."""

import json
import re
from pathlib import PurePath
from typing import Final, Literal

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.csv_dialect import looks_like_table
from slidepack.engine.data.opening import Source
from slidepack.engine.data.rows import clip

Kind = Literal["array", "lines", "table", "text"]

_READ: Final = "JSON lines, JSON, CSV, TSV, Parquet, Arrow and plain text are read."
_PACKED: Final = "unpack it first: inside gzip and zstd only text is read"
_SIGNATURES: Final = {
    b"PAR1": ("a Parquet file", _PACKED),
    b"ARROW1": ("an Arrow file", _PACKED),
    b"PARE": ("an encrypted Parquet file", "decrypt it first"),
    b"FEA1": ("a Feather file of version 1", "write it anew with version 2"),
    b"PK\x03\x04": ("a zip archive or a spreadsheet", "unpack it, or save the sheet as CSV"),
    b"\x1f\x8b": ("a gzip archive", "unpack it first: it is packed twice"),
    b"\x28\xb5\x2f\xfd": ("a zstd archive", "unpack it first: it is packed twice"),
    b"BZh": ("a bzip2 archive", "unpack it, or pack it with gzip or zstd"),
    b"\xfd7zXZ": ("an xz archive", "unpack it, or pack it with gzip or zstd"),
    b"7z\xbc\xaf": ("a 7-Zip archive", "unpack it, or pack it with gzip or zstd"),
    b"Rar!": ("a RAR archive", "unpack it, or pack it with gzip or zstd"),
    b"\xd0\xcf\x11\xe0": ("an old Office document", "save the sheet as CSV"),
    b"SQLite format 3": ("a SQLite database", "export the table as CSV"),
    b"GGUF": ("a GGUF model", "choose the data file"),
    b"version https://git-lfs.github.com/spec/": (
        "what Git LFS keeps in place of a large file",
        "get the file itself with `git lfs pull`",
    ),
    b"\x89PNG": ("a picture", "choose the data file"),
    b"\xff\xd8\xff": ("a picture", "choose the data file"),
    b"%PDF": ("a PDF", "save its text as .txt"),
    b"\x7fELF": ("a program", "choose the data file"),
}
_TAR_MAGIC: Final = slice(257, 262)
_COLUMNAR_SUFFIXES: Final = (".parquet", ".pq", ".arrow", ".feather")
_JSON_SUFFIXES: Final = (".json", ".jsonl", ".ndjson", ".jsonlines")
_TABLE_SUFFIXES: Final = (".csv", ".tsv", ".tab")
_TEXT_SUFFIXES: Final = (".txt", ".text")
_MARKDOWN_SUFFIXES: Final = (".md", ".markdown")
_MARKUP: Final = (
    (re.compile(r"<(!doctype\s+html|html|head)\b", re.IGNORECASE), "an HTML page"),
    (re.compile(r"<\?xml\b", re.IGNORECASE), "an XML document"),
)
_CONTROLS: Final = re.compile("[\0-\b\x0e-\x1a\x1c-\x1f]")
_MAX_CONTROL_SHARE: Final = 0.05
_LINES_LOOKED_AT: Final = 50
_decoder: Final = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)


class Sample(msgspec.Struct, frozen=True):
    """The first part of a text, without white space before it."""

    text: str
    whole: bool
    """Whether it is all of the text."""


def refuse_binary(source: Source, head: bytes) -> None:
    """Refuse by name what holds no rows of text.

    Raises:
        SlidepackError: DATA-FORMAT-UNKNOWN.
    """
    found = next((what for start, what in _SIGNATURES.items() if head.startswith(start)), None)
    if head[_TAR_MAGIC] == b"ustar":
        found = ("a tar archive", "unpack it and choose one file of it")
    if found:
        inside = f" inside {source.compression}" if source.compression else ""
        raise _unknown(
            f"This is {found[0]}{inside}, which is not read.",
            f"{source.name} starts with {head[:4]!r}",
            f"{found[1][0].upper()}{found[1][1:]}. {_READ}",
        )
    suffix = PurePath(source.inner_name).suffix.lower()
    if suffix in _COLUMNAR_SUFFIXES and head:
        raise _unknown(
            "The file is called Parquet or Arrow, and is neither.",
            f"{source.name} starts with {head[:4]!r}",
            "Copy or download the file again, or give it the suffix of what it is.",
        )


def refuse_markup(source: Source, sample: Sample) -> None:
    """Refuse a page of the web: what a failed download often leaves under the name of the data.

    Raises:
        SlidepackError: DATA-FORMAT-UNKNOWN.
    """
    for start, what in _MARKUP:
        if start.match(sample.text):
            raise _unknown(
                f"This is {what}, which is not read.",
                f"{source.name} starts with {clip(sample.text, 60)}",
                "Download the data file itself: a page in its place often says why that failed. "
                f"To learn from pages, save their text as .txt. {_READ}",
            )


def refuse_odd_text(source: Source) -> None:
    """Ask about plain text whose name says that it is something else.

    Raises:
        SlidepackError: DATA-AMBIGUOUS.
    """
    suffix = PurePath(source.inner_name).suffix
    if suffix and suffix.lower() not in (*_TEXT_SUFFIXES, *_MARKDOWN_SUFFIXES):
        raise SlidepackError(
            "DATA-AMBIGUOUS",
            f"A {clip(suffix, 20)} file is not read as data, but could be learned as plain text.",
            why=f"{source.name} is neither JSON nor a table, and not called .txt or .md",
            fix="To learn all of its text, say so: --format text, with --text-mode paragraph or "
            "line for more than one row. Otherwise save its rows as JSON lines.",
        )


def kind_of(source: Source, sample: Sample) -> Kind:
    """Return how to read a text: by its name, and by its content where that says more.

    Raises:
        SlidepackError: DATA-FORMAT-UNKNOWN, where it is no text.
    """
    suffix = PurePath(source.inner_name).suffix.lower()
    json_kind: Kind = "array" if sample.text.startswith("[") else "lines"
    if suffix in _JSON_SUFFIXES:
        return json_kind
    if suffix in _MARKDOWN_SUFFIXES:
        return "text"
    if suffix in _TABLE_SUFFIXES:
        return json_kind if _is_json(sample) else "table"
    if suffix in _TEXT_SUFFIXES:
        return json_kind if _is_json(sample) else "text"
    if sample.text.startswith(("[", "{")) or _is_json(sample):
        return json_kind
    if looks_like_table(sample.text, sample.whole):
        return "table"
    num_controls = len(_CONTROLS.findall(sample.text))
    if num_controls > _MAX_CONTROL_SHARE * len(sample.text):
        raise _unknown(
            "The file is no text.",
            f"{source.name} starts with {clip(sample.text, 40)!r}",
            f"Choose another file. {_READ}",
        )
    return "text"


def is_more_than_one_line(sample: Sample) -> bool:
    """Return whether the text is surely JSON lines: a value, and more after its line."""
    line, newline, rest = sample.text.partition("\n")
    if not newline or not rest.strip():
        return False
    try:
        _decoder.decode(line)
    except (ValueError, RecursionError):
        return False
    return True


def _is_json(sample: Sample) -> bool:
    """Return whether a text is JSON: its first value is a row or rows, or most lines are."""
    if sample.text.startswith(("[", "{")):
        try:
            value, _ = _decoder.raw_decode(sample.text)
        except json.JSONDecodeError as error:
            return not sample.whole and error.pos > len(sample.text) // 2
        except RecursionError:
            return False
        return isinstance(value, dict) or (bool(value) and isinstance(value[0], dict | list))
    lines = [line for line in sample.text.split("\n", _LINES_LOOKED_AT) if line.strip()]
    return 2 * sum(map(_is_object, lines[:_LINES_LOOKED_AT])) > len(lines)


def _is_object(line: str) -> bool:
    if not line.lstrip("\ufeff \t").startswith("{"):
        return False
    try:
        return isinstance(_decoder.decode(line.lstrip("\ufeff")), dict)
    except (ValueError, RecursionError):
        return False


def _unknown(what: str, why: str, fix: str) -> SlidepackError:
    return SlidepackError("DATA-FORMAT-UNKNOWN", what, why=why, fix=fix)
