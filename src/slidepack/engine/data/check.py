"""Checks a data file and writes its normalised form: rows, rejects and a report."""

import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.json_array import RawRow
from slidepack.engine.data.reading import read_rows
from slidepack.engine.data.recognise import RowConverter, formats_of, unread_fields
from slidepack.engine.data.rows import FORMATS, Format, Reject, clip, encode_row, first_question

_AMBIGUOUS_SHARE: Final = 0.01
"""Above this share of rows that fit a second format, the user is asked."""
_SHOWN_REJECTS: Final = 20
_SHOWN_FIELDS: Final = 50
_COLLECTED_FIELDS: Final = 10_000
"""A file whose rows have keys of their own (ids, say) must not fill the memory with them."""


class DataReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a check found."""

    format: Format
    rows: int
    """Rows in the file, usable or not."""
    usable: int
    rejected: int
    reasons: dict[str, int]
    """Rejected rows by reason."""
    first_rejects: tuple[Reject, ...]
    """The first few; all of them stand in `rejects.jsonl`."""
    ignored_fields: tuple[str, ...]
    """Fields of the file that no prompt sees."""
    first_questions: tuple[str, ...]
    """What the first usable rows ask, clipped."""
    content_hash: str
    """sha256 of the normalised rows."""
    notes: tuple[str, ...] = ()
    """What was done to the file and to its rows so that they could be read, in sentences."""


def known_format(form: str | None) -> Format | None:
    """Return the format of that name, or None where none is named.

    Raises:
        SlidepackError: DATA-FORMAT-UNKNOWN.
    """
    if form is None:
        return None
    for known in FORMATS:
        if form == known:
            return known
    raise SlidepackError(
        "DATA-FORMAT-UNKNOWN",
        f"There is no format called {clip(form)}.",
        fix=f"Use one of {', '.join(FORMATS)}.",
    )


def detect_format(path: Path) -> Format:
    """Return the one format of the file, judged over all of its rows.

    Raises:
        SlidepackError: the reading errors of `read_rows`, DATA-FORMAT-UNKNOWN where no row fits,
            DATA-AMBIGUOUS where two formats fit.
    """
    counts: Counter[Format] = Counter()
    total = 0
    example = ""
    for raw in read_rows(path):
        total += 1
        if isinstance(raw, Reject):
            continue
        found = formats_of(raw.value)
        counts.update(found)
        if not found and not example:
            example = f"line {raw.line} is {clip(raw.value)}"
    if not counts:
        raise SlidepackError(
            "DATA-FORMAT-UNKNOWN",
            "No row has a form that can be learned from.",
            why=example or f"{total} rows, none of them JSON objects",
            fix="Use rows with `messages`, with `instruction` and `output`, "
            "or with `prompt` and `completion`.",
        )
    ranked = counts.most_common()
    if len(ranked) > 1 and ranked[1][1] > _AMBIGUOUS_SHARE * total:
        seen = ", ".join(f"{name} {count}" for name, count in ranked)
        raise SlidepackError(
            "DATA-AMBIGUOUS",
            "The rows fit more than one format.",
            why=f"of {total} rows: {seen}",
            fix=f"Say which one: --format {' or '.join(name for name, _ in ranked)}.",
        )
    return ranked[0][0]


def check_file(
    path: Path, rows_path: Path, rejects_path: Path, form: str | None = None
) -> DataReport:
    """Check `path`, write its usable rows and its rejects, and report.

    Args:
        path: the user's file.
        rows_path: where the normalised rows go.
        rejects_path: where the rejected rows go, one JSON object a line.
        form: the format to read the file as; None detects it.

    Raises:
        SlidepackError: as `detect_format`, and DATA-NO-USABLE-ROWS.
    """
    chosen = known_format(form) or detect_format(path)
    with rows_path.open("wb") as rows_file, rejects_path.open("wb") as rejects_file:
        report = _convert_all(path, chosen, rows_file, rejects_file)
        for written in (rows_file, rejects_file):
            # Jobs are pinned to these bytes, so a power cut must not take them.
            written.flush()
            os.fsync(written.fileno())
    if not report.usable:
        first = report.first_rejects[0] if report.first_rejects else None
        raise SlidepackError(
            "DATA-NO-USABLE-ROWS",
            f"None of the {report.rows} rows can be used.",
            why=f"line {first.line}: {first.reason} ({first.detail})" if first else "",
            fix="Mend the rows named, then add the file again.",
        )
    return report


def _convert_all(
    path: Path, form: Format, rows_file: BinaryIO, rejects_file: BinaryIO
) -> DataReport:
    digest = hashlib.sha256()
    reasons: Counter[str] = Counter()
    first_rejects: list[Reject] = []
    questions: list[str] = []
    ignored: set[str] = set()
    notes: list[str] = []
    usable = 0
    converter = RowConverter(form)
    for raw in read_rows(path, notes):
        row = raw if isinstance(raw, Reject) else converter.convert(raw.line, raw.value)
        if isinstance(row, Reject):
            reasons[row.reason] += 1
            rejects_file.write(msgspec.json.encode(row) + b"\n")
            if len(first_rejects) < _SHOWN_REJECTS:
                first_rejects.append(row)
            continue
        if isinstance(raw, RawRow) and len(ignored) < _COLLECTED_FIELDS:
            ignored |= unread_fields(raw.value, form)
        encoded = encode_row(row)
        digest.update(encoded)
        rows_file.write(encoded)
        usable += 1
        if len(questions) < 3:
            questions.append(clip(first_question(row), 200))
    return DataReport(
        format=form,
        rows=usable + sum(reasons.values()),
        usable=usable,
        rejected=sum(reasons.values()),
        reasons=dict(sorted(reasons.items())),
        first_rejects=tuple(first_rejects),
        ignored_fields=tuple(sorted(map(clip, ignored)))[:_SHOWN_FIELDS],
        first_questions=tuple(questions),
        content_hash=digest.hexdigest(),
        notes=(*notes, *converter.notes()),
    )
