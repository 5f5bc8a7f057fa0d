"""Reads CSV and TSV: one row a record, every cell the text that stands there.

No value is ever inferred: `NA`, `null`, `007` and the empty cell are learned as they are written.
"""

import csv
import re
from collections import Counter, deque
from collections.abc import Iterator
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.csv_dialect import MAX_RECORD_CHARS, Dialect, sniff_dialect, why_no_name
from slidepack.engine.data.encoding import TextReader, text_lines
from slidepack.engine.data.json_array import RawRow
from slidepack.engine.data.rows import Reject, clip

_SEPARATOR_NAMES: Final = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_INDEX_NAME: Final = re.compile(r"(Unnamed: \d+(\.\d+)?)?")
"""What pandas calls the column of its row numbers."""
_MAX_RETRIED_CHARS: Final = 8 * MAX_RECORD_CHARS
"""How much is read twice after broken quotes before the file is given up."""
_MAX_ROW_LINES: Final = 100
"""No row goes over more lines before the one whose quote is broken."""


def read_table(
    reader: TextReader, name: str, sample: tuple[str, bool], notes: list[str]
) -> Iterator[RawRow | Reject]:
    """Yield the rows of a table as objects of the header's names.

    Args:
        reader: the text.
        name: stands in errors.
        sample: the first part of the text, and whether it is all of it.
        notes: gets what the user should know.

    Raises:
        SlidepackError: DATA-FORMAT-UNKNOWN: no header, a name twice, a quote that never closes.
    """
    dialect = sniff_dialect(*sample)
    records = _Records(reader, name, dialect).rows()
    header = next(records, None)
    while isinstance(header, tuple) and dialect.hint_line and header[1][0].startswith("sep="):
        header = next(records, None)
    if header is None:
        return
    if isinstance(header, Reject):
        raise _refused(f"{name}: line {header.line}: {header.detail}", "Mend the first line.")
    names = _names(header[1], name, header[0])
    kept = _kept_columns(names, notes)
    numbering = _Numbering(kept[0])
    _tell_dialect(dialect, len(names), notes)
    whole = len(kept) == len(names)
    first_reject: Reject | None = None
    read_any = False
    for record in records:
        if isinstance(record, Reject):
            first_reject = first_reject or record
            yield record
            continue
        line, cells = record
        if len(cells) != len(names):
            detail = f"{len(cells)} cells, and the header has {len(names)}: {clip(cells)}"
            reject = Reject(line=line, reason="wrong-cell-count", detail=detail)
            first_reject = first_reject or reject
            yield reject
            continue
        read_any = True
        if whole:
            yield RawRow(line, dict(zip(names, cells, strict=True)))
        else:
            numbering.add(cells)
            yield RawRow(line, {names[i]: cells[i] for i in kept})
    if first_reject and not read_any:
        raise _refused(
            f"{name}: no row can be read; line {first_reject.line}: {first_reject.detail}",
            "Mend the quotation marks and separators of the rows.",
        )
    numbering.tell(names, notes)


def _names(cells: list[str], name: str, line: int) -> list[str]:
    names = [cell.strip() for cell in cells]
    where = f"{name}: line {line}"
    for place, column in enumerate(names, start=1):
        unnamed_edge = not column and 1 in (place, len(names) + 1 - place) and len(names) > 1
        why = "" if unnamed_edge else why_no_name(column)
        if why:
            raise _refused(
                f"{where}: the name of column {place} {why}: {clip(column)!r}",
                "Put a line with the names of the columns first, such as prompt,completion.",
            )
    twice = [column for column, count in Counter(names).items() if column and count > 1]
    if twice:
        raise _refused(
            f"{where}: more than one column is called {clip(', '.join(twice))!r}",
            "Give every column a name of its own.",
        )
    return names


def _kept_columns(names: list[str], notes: list[str]) -> list[int]:
    """Return the places of the columns that have names of people's."""
    kept = list(range(len(names)))
    while len(kept) > 1 and _INDEX_NAME.fullmatch(names[kept[0]]):
        kept.pop(0)
    if len(kept) > 1 and not names[kept[-1]]:
        notes.append("The last column has no name and was left out.")
        kept.pop()
    return kept


class _Numbering:
    """Finds out whether the first columns that are left out number the rows."""

    def __init__(self, num_columns: int) -> None:
        self._last = [-1] * num_columns
        self._counts = [True] * num_columns

    def add(self, cells: list[str]) -> None:
        """Look at a row."""
        for i, last in enumerate(self._last):
            cell = cells[i]
            # Rows may have been dropped before the table was saved.
            self._counts[i] = self._counts[i] and cell.isdecimal() and int(cell[:18]) > last
            if self._counts[i]:
                self._last[i] = int(cell[:18])

    def tell(self, names: list[str], notes: list[str]) -> None:
        """Say what was left out."""
        for name, counts in zip(names, self._counts, strict=False):
            called = f"called {name!r}" if name else "without a name"
            what = "holds row numbers and was" if counts else "was"
            notes.append(f"The first column, {called}, {what} left out.")


def _tell_dialect(dialect: Dialect, num_columns: int, notes: list[str]) -> None:
    if dialect.separator != "," and num_columns > 1:
        called = _SEPARATOR_NAMES.get(dialect.separator, repr(dialect.separator))
        notes.append(f"The table's columns are separated by {called}.")
    if not dialect.quoted:
        notes.append("Quotation marks do not quote in this table; they were taken as they stand.")


class _Records:
    """The records of a table with the lines on which they start, over broken quotes."""

    def __init__(self, reader: TextReader, name: str, dialect: Dialect) -> None:
        self._lines = text_lines(reader, MAX_RECORD_CHARS)
        self._name = name
        self._dialect = dialect
        self._again: deque[str] = deque()
        """Lines that stand after a broken quote, to be read anew."""
        self._taken: list[str] = []
        """Lines of the record at hand."""
        self._num_chars = 0
        self._num_retried = 0
        self._line = 0

    def rows(self) -> Iterator[tuple[int, list[str]] | Reject]:
        """Yield (line, cells) of each record that is not blank."""
        records = self._dialect.reader(self._feed())
        while True:
            self._taken.clear()
            self._num_chars = 0
            start = self._line + 1
            try:
                cells = next(records)
            except StopIteration:
                return
            except csv.Error as error:
                yield self._broken(start, str(error))
                records = self._dialect.reader(self._feed())
                continue
            if cells:
                yield start, cells

    def _feed(self) -> Iterator[str]:
        while True:
            line = self._again.popleft() if self._again else next(self._lines, "")
            if line == "":
                return
            if line is None:
                raise self._too_long()
            self._num_chars += len(line)
            if self._num_chars > MAX_RECORD_CHARS:
                # The parser reports a quote that is not closed.
                self._again.appendleft(line)
                return
            self._line += 1
            self._taken.append(line)
            yield line

    def _broken(self, start: int, why: str) -> Reject:
        """Reject the line whose quote is to blame, and have those after it read anew."""
        taken = list(self._taken)
        at_end = "unexpected end" in why
        if len(taken) == 1 and not at_end:
            detail = f"{why}, in {clip(taken[0])}"
            return Reject(line=start, reason="broken-quote", detail=detail)
        opened = _opening_line(taken, self._dialect.separator)
        if opened > _MAX_ROW_LINES:
            # Rather the row's own first line than so many lines lost with it.
            opened = 0
        place = start + opened
        self._num_retried += sum(map(len, taken))
        if self._num_retried > _MAX_RETRIED_CHARS:
            raise _refused(
                f"{self._name}: line {place}: a quotation mark opens and is not closed: "
                f"{clip(taken[opened])}",
                "Close it, or write two where one is meant.",
            )
        self._again.extendleft(reversed(taken[opened + 1 :]))
        self._line = place
        begun = f", in a row that begins on line {start}" if opened else ""
        detail = f"a quotation mark opens here and is not closed{begun}: {clip(taken[opened])}"
        return Reject(line=place, reason="broken-quote", detail=detail)

    def _too_long(self) -> SlidepackError:
        return _refused(
            f"{self._name}: line {self._line + 1} is longer than {MAX_RECORD_CHARS >> 20} Mi "
            "characters",
            "Make the row shorter.",
        )


def _opening_line(lines: list[str], separator: str) -> int:
    """Return the line, from 0, on which the quote opens that swallowed the rest."""
    inside = False
    opened = 0
    cell_start = re.compile(rf'(?:^|{re.escape(separator)})"|"')
    for number, line in enumerate(lines):
        place = 0
        while found := cell_start.search(line, place):
            place = found.end()
            if inside and line.startswith('"', place):
                place += 1
            elif inside:
                inside = False
            elif len(found[0]) > 1 or found.start() == 0:
                inside, opened = True, number
    return opened


def _refused(why: str, fix: str) -> SlidepackError:
    return SlidepackError("DATA-FORMAT-UNKNOWN", "The table cannot be read.", why=why, fix=fix)
