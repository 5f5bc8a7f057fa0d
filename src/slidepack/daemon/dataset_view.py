"""What a page shows of a dataset's files: rejects page by page, lengths, rows with a model."""

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.first_look import row_characters
from slidepack.engine.data.lengths import LengthReport, length_report
from slidepack.engine.data.model_report import (
    MeasureRequest,
    ModelDataReport,
    measure_in_process,
)
from slidepack.engine.data.rows import Reject, decode_row

__all__ = ["RejectPage", "RowSample", "lengths_in_characters", "reject_page", "rows_with_model"]

PAGE_ROWS: Final = 50
_LOOK_BACK_BYTES: Final = 1 << 16
_SAMPLE_BYTES: Final = 16 << 20
_MODEL_SAMPLE_BYTES: Final = 2 << 20


class RejectPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some rows that were left out, in the order of the file."""

    rejects: tuple[Reject, ...]
    next_at: int | None
    """Where the next page begins; None where this is the last."""
    previous_at: int | None
    """Where the page before begins; None where this is the first."""


class RowSample(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of the first rows."""

    rows: int
    """That were looked at."""
    whole: bool
    """Whether these are all."""
    lengths: LengthReport


def reject_page(path: Path, at: int, count: int = PAGE_ROWS) -> RejectPage:
    """Return a page of rejects.

    Args:
        path: of `rejects.jsonl`.
        at: byte at which the page begins, as an earlier page said; what is no beginning of a line
            is moved on to the next one.
        count: most rows of a page.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return RejectPage(rejects=(), next_at=None, previous_at=None)
    with file:
        begin = _line_start(file.fileno(), at)
        file.seek(begin)
        lines: list[bytes] = []
        while len(lines) < count and (line := file.readline()):
            lines.append(line)
        end = file.tell()
        more = bool(file.readline())
    return RejectPage(
        rejects=tuple(msgspec.json.decode(line, type=Reject) for line in lines),
        next_at=end if more else None,
        previous_at=_page_before(path, begin, count) if begin else None,
    )


def lengths_in_characters(rows_path: Path) -> RowSample:
    """Return how long the first rows are, in characters of their texts; of 16 MB at most.

    Raises:
        OSError: the rows cannot be read.
    """
    lengths: Counter[int] = Counter()
    with rows_path.open("rb") as rows:
        read = 0
        for line in rows:
            lengths[row_characters(decode_row(line))] += 1
            read += len(line)
            if read >= _SAMPLE_BYTES:
                break
        whole = not rows.readline()
    return RowSample(
        rows=lengths.total(), whole=whole, lengths=length_report(lengths, max(lengths, default=0))
    )


def rows_with_model(
    rows_path: Path, model: Path, max_seq_len: int
) -> tuple[ModelDataReport, RowSample]:
    """Return what the first rows become with a model; of 2 MB at most, in some seconds.

    Args:
        rows_path: of the normalised rows.
        model: a model's folder.
        max_seq_len: most tokens of a row.

    Raises:
        OSError: the rows cannot be read.
        SlidepackError: as `measure_in_process`.
    """
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as sample:
        with rows_path.open("rb") as rows:
            read = 0
            while read < _MODEL_SAMPLE_BYTES and (line := rows.readline()):
                sample.write(line)
                read += len(line)
            whole = not rows.readline()
        sample.flush()
        measured = measure_in_process(MeasureRequest.of(sample.name, model, max_seq_len, "drop"))
    return measured, RowSample(rows=measured.rows, whole=whole, lengths=measured.lengths)


def _line_start(descriptor: int, at: int) -> int:
    if at <= 0:
        return 0
    size = os.fstat(descriptor).st_size
    at = min(at, size)
    while at < size and os.pread(descriptor, 1, at - 1) != b"\n":
        at += 1
    return at


def _page_before(path: Path, begin: int, count: int) -> int:
    start = max(0, begin - _LOOK_BACK_BYTES)
    with path.open("rb") as file:
        file.seek(start)
        before = file.read(begin - start)
    # The first is cut off, unless it is that of the file.
    lines = before.splitlines(keepends=True)[0 if start == 0 else 1 :]
    return begin - sum(map(len, lines[-count:]))
