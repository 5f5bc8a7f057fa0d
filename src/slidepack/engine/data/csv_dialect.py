"""Finds out how a table of text is written, by trying: the separator and whether quotes quote.

Deterministic, unlike the standard library's sniffer: the reading with the most rows as wide as the
header wins, and a tie goes to the one that stands first here.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

_SEPARATORS: Final = (",", ";", "\t", "|")
MAX_RECORD_CHARS: Final = 8 << 20
"""Longest row: the standard library's parser takes four bytes and more a character."""
_EXCEL_HINT: Final = re.compile(r"sep=([^\w\n])\n")
"""A first line by which Excel tells itself the separator."""
_SHORT_NAME: Final = re.compile(r"\w[\w.:-]{0,30}( [\w.:-]{1,20}){0,2}")
"""A comma in prose has a space behind it."""
_MIN_ROWS: Final = 2
_LONGEST_NAME: Final = 80
_MOST_WORDS: Final = 7


class Dialect(msgspec.Struct, frozen=True):
    """How cells are told apart."""

    separator: str
    quoted: bool = True
    hint_line: bool = False
    """Whether the first line is Excel's `sep=;`."""

    def reader(self, lines: Iterable[str]) -> Any:
        """Return a strict `csv.reader` over lines that end in a newline."""
        # For the whole process, but nobody else reads tables.
        csv.field_size_limit(MAX_RECORD_CHARS)
        return csv.reader(
            lines,
            delimiter=self.separator,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
            strict=True,
        )


_DIALECTS: Final = (*map(Dialect, _SEPARATORS), Dialect("\t", quoted=False))
"""Tabs are often written without quoting; elsewhere a lone quotation mark is a mistake."""


class _Trial(msgspec.Struct, frozen=True):
    """How well a dialect explains the sample."""

    width: int
    num_rows: int
    num_good: int
    header: list[str]

    @property
    def score(self) -> float:
        """Share of the rows that are as wide as the header; 0 where nothing is separated."""
        return self.num_good / self.num_rows if self.width > 1 else 0.0


def sniff_dialect(sample: str, whole: bool) -> Dialect:
    """Return the dialect that explains most rows of the first part of a file."""
    hint = _EXCEL_HINT.match(sample)
    if hint:
        return Dialect(hint[1], hint_line=True)
    best = _one_column(sample, whole)
    best_score = 0.0
    for dialect in _DIALECTS:
        trial = _try(dialect, sample, whole)
        if trial.score > best_score and (dialect.quoted or trial.score == 1.0):
            best, best_score = dialect, trial.score
    return best


def _one_column(sample: str, whole: bool) -> Dialect:
    """Return the separator that separates least, for a table in which nothing is to separate."""
    dialects = [Dialect(separator) for separator in _SEPARATORS]
    return max(dialects, key=lambda dialect: _try(dialect, sample, whole).num_good)


def looks_like_table(sample: str, whole: bool) -> bool:
    """Return whether a text is surely a table: every row is as wide as a header of short names."""
    dialect = sniff_dialect(sample, whole)
    trial = _try(dialect, sample, whole)
    return (
        trial.score == 1.0
        and trial.num_rows >= _MIN_ROWS
        and all(_SHORT_NAME.fullmatch(name) for name in trial.header[1:])
        and not why_no_name(trial.header[-1])
    )


def why_no_name(name: str) -> str:
    """Return why a cell of the first line cannot be the name of a column, or ""."""
    text = name.strip()
    if not text:
        return "is empty"
    if "\n" in text or len(text) > _LONGEST_NAME or len(text.split()) > _MOST_WORDS:
        return "is too long for a name"
    if re.fullmatch(r"[-+]?[\d.,]+(e[-+]?\d+)?%?", text, re.IGNORECASE):
        return "is a number"
    if text[-1] in ".!?" and len(text.split()) > 2:
        return "is a sentence"
    return ""


def _try(dialect: Dialect, sample: str, whole: bool) -> _Trial:
    rows = list(_rows(dialect, sample))
    if not whole:
        # The sample breaks off within the last one.
        rows = rows[:-1]
    header = rows[0] if rows else None
    if header is None:
        return _Trial(0, 0, 0, [])
    num_good = sum(row is not None and len(row) == len(header) for row in rows)
    return _Trial(len(header), len(rows), num_good, header)


def _rows(dialect: Dialect, sample: str) -> Iterator[list[str] | None]:
    """Yield the rows that are not blank; None stands for one whose quotes are broken."""
    reader = dialect.reader(io.StringIO(sample))
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield None
            continue
        if row:
            yield row
