"""Several files that become one dataset: their rows one after the other, and one report.

The files are of one kind and their rows of one family; what differs is refused by name, so that
nobody trains on a mixture unawares. Line numbers go on from file to file: the report says where
each begins.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import msgspec

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.data.check import OnBytes, judge_file
from slidepack.engine.data.report import CheckOptions, DataReport, FileReport, Issue, Verdict
from slidepack.engine.data.rows import Reject, Row, clip, decode_row, encode_row

__all__ = ["judge_files", "require_one_kind", "suffix_of"]

_KINDS: Final = {
    "JSON": ("json", "jsonl", "ndjson", "geojson"),
    "a table": ("csv", "tsv", "tab", "psv"),
    "Parquet": ("parquet",),
    "Arrow": ("arrow", "feather"),
    "text": ("txt", "md", "markdown", "text", "log"),
}
_COMPRESSED: Final = ("gz", "zst", "bz2", "xz")
_SUFFIX: Final = re.compile(r"(\.[a-z0-9]{1,10}){1,2}$")
_RANK: Final[tuple[Verdict, ...]] = ("ok", "warn", "ask", "refuse")
_SHOWN_REJECTS: Final = 20
_SHOWN_QUESTIONS: Final = 3
_Line = TypeVar("_Line", Row, Reject)


def suffix_of(name: str) -> str:
    """Return the ending of a name, which tells a table from a text: `.csv` or `.jsonl.gz`."""
    found = _SUFFIX.search(name.lower())
    return found.group() if found else ""


def require_one_kind(names: Sequence[str]) -> None:
    """Refuse files that cannot become one dataset, by what their names end in.

    Raises:
        SlidepackError: DATA-REFUSED, naming a file of each kind.
    """
    kinds: dict[str, str] = {}
    for name in names:
        kinds.setdefault(_kind(name), name)
    if len(kinds) > 1:
        raise SlidepackError(
            "DATA-REFUSED",
            "Files of different kinds cannot become one dataset.",
            why=", ".join(f"{clip(name)} is {kind}" for kind, name in kinds.items()),
            fix="Add the files of each kind by themselves.",
        )


def judge_files(
    files: Sequence[tuple[str, Path]],
    rows_path: Path,
    rejects_path: Path,
    options: CheckOptions,
    progress: OnBytes | None = None,
) -> DataReport:
    """Check files as `judge_file` does one, write the rows of all of them, and report.

    Args:
        files: names as users know them, and where the files are; in the order of their rows.
        rows_path: where the normalised rows go.
        rejects_path: where the rejected rows go.
        options: how to read each file.
        progress: called with the number of bytes read, of all files together.

    Raises:
        SlidepackError: DATA-REFUSED where their rows are of different families.
    """
    if len(files) == 1:
        name, path = files[0]
        return judge_file(path, rows_path, rejects_path, options, progress, name)
    parts = [(path.with_suffix(".rows"), path.with_suffix(".rejects")) for _, path in files]
    try:
        reports: list[DataReport] = []
        done = 0
        for (name, path), (rows, rejects) in zip(files, parts, strict=True):
            reports.append(judge_file(path, rows, rejects, options, _from(progress, done), name))
            done += path.stat().st_size
        names = [name for name, _ in files]
        _require_one_family(names, reports)
        return _joined(names, reports, parts, rows_path, rejects_path)
    finally:
        for rows, rejects in parts:
            rows.unlink(missing_ok=True)
            rejects.unlink(missing_ok=True)


def _from(progress: OnBytes | None, done: int) -> OnBytes | None:
    return None if progress is None else lambda num_bytes: progress(done + num_bytes)


def _kind(name: str) -> str:
    endings = [part for part in suffix_of(name).split(".") if part]
    while endings and endings[-1] in _COMPRESSED:
        endings.pop()
    last = endings[-1] if endings else ""
    return next(
        (kind for kind, known in _KINDS.items() if last in known),
        f"a .{last} file" if last else "a file without an ending",
    )


def _require_one_family(names: Sequence[str], reports: Sequence[DataReport]) -> None:
    seen: dict[str, str] = {}
    for name, report in zip(names, reports, strict=True):
        if report.error is None and report.family is not None:
            seen.setdefault(report.family, name)
    if len(seen) > 1:
        raise SlidepackError(
            "DATA-REFUSED",
            "The rows of these files are of different kinds.",
            why=", ".join(f"{clip(name)} is read as {family}" for family, name in seen.items()),
            fix="Add the files of each kind by themselves, or say what all of them are read as.",
        )


def _joined(
    names: Sequence[str],
    reports: Sequence[DataReport],
    parts: Sequence[tuple[Path, Path]],
    rows_path: Path,
    rejects_path: Path,
) -> DataReport:
    digest = hashlib.sha256()
    files: list[FileReport] = []
    issues: list[Issue] = []
    before = 0
    with rows_path.open("wb") as rows_file, rejects_path.open("wb") as rejects_file:
        for name, report, (rows, rejects) in zip(names, reports, parts, strict=True):
            files.append(
                FileReport(
                    name=clip(name, 200),
                    lines_before=before,
                    rows=report.rows,
                    accepted=report.accepted,
                    rejected=report.rejected,
                )
            )
            issues += (_moved(issue, name, before) for issue in report.issues)
            last = max(
                report.rows,
                _copy_rows(rows, rows_file, before, digest),
                _copy_rejects(rejects, rejects_file, before),
            )
            before += last
        for file in (rows_file, rejects_file):
            # Jobs are pinned to these bytes, so a power cut must not take them.
            file.flush()
            os.fsync(file.fileno())
    return _summed(names, reports, tuple(files), issues, digest.hexdigest())


def _summed(
    names: Sequence[str],
    reports: Sequence[DataReport],
    files: tuple[FileReport, ...],
    issues: Sequence[Issue],
    content_hash: str,
) -> DataReport:
    verdict = max((report.verdict for report in reports), key=_RANK.index)
    worst = next(n for n, report in enumerate(reports) if report.verdict == verdict)
    rejects = [issue for issue in issues if issue.level == "reject"][:_SHOWN_REJECTS]
    return DataReport(
        family=reports[worst].family,
        rows=sum(report.rows for report in reports),
        accepted=sum(report.accepted for report in reports),
        repaired=sum(report.repaired for report in reports),
        rejected=sum(report.rejected for report in reports),
        reasons=_counted(report.reasons for report in reports),
        repairs=_counted(report.repairs for report in reports),
        ignored_columns=_united(report.ignored_columns for report in reports),
        columns={role: name for report in reports[::-1] for role, name in report.columns.items()},
        choices=reports[worst].choices,
        issues=(
            *(issue for issue in issues if issue.level == "error"),
            *(issue for issue in issues if issue.level == "warning"),
            *rejects,
        ),
        first_questions=_united(report.first_questions for report in reports)[:_SHOWN_QUESTIONS],
        content_hash=content_hash,
        notes=tuple(
            f"{clip(name)}: {note}"
            for name, report in zip(names, reports, strict=True)
            for note in report.notes
        ),
        verdict=verdict,
        error=_named(names[worst], reports[worst].error),
        options=reports[worst].options,
        files=files,
    )


def _moved(issue: Issue, name: str, before: int) -> Issue:
    line = issue.line + before if issue.line else 0
    message = issue.message if issue.level == "reject" else f"{clip(name)}: {issue.message}"
    return msgspec.structs.replace(issue, line=line, message=message)


def _named(name: str, error: ErrorReport | None) -> ErrorReport | None:
    if error is None:
        return None
    return msgspec.structs.replace(error, what=f"{clip(name)}: {error.what}")


def _copy_rows(source: Path, target: BinaryIO, before: int, digest: "hashlib._Hash") -> int:
    """Append rows with their lines moved on; return the highest line that the file had."""
    last = 0
    with source.open("rb") as lines:
        for line in lines:
            row = decode_row(line)
            last = max(last, row.line)
            encoded = encode_row(_at(row, before))
            digest.update(encoded)
            target.write(encoded)
    return last


def _copy_rejects(source: Path, target: BinaryIO, before: int) -> int:
    last = 0
    with source.open("rb") as lines:
        for line in lines:
            reject = msgspec.json.decode(line, type=Reject)
            last = max(last, reject.line)
            target.write(msgspec.json.encode(_at(reject, before)) + b"\n")
    return last


def _at(value: _Line, before: int) -> _Line:
    return msgspec.structs.replace(value, line=value.line + before)


def _counted(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))


def _united(parts: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in parts for name in part))
