"""Checks a data file and writes its normalised form: rows, rejects and a report."""

import contextlib
import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.families.cells import Repair
from slidepack.engine.data.families.preference import preference_error
from slidepack.engine.data.issues import error_issues, more_ignored, reject_issue
from slidepack.engine.data.json_array import RawRow
from slidepack.engine.data.judge import MAX_NAMES, Judge
from slidepack.engine.data.lint import Lint
from slidepack.engine.data.lint_process import LintProcess
from slidepack.engine.data.mapping import ColumnMapping, mapping_of, require_columns, text_mode_of
from slidepack.engine.data.reading import read_rows
from slidepack.engine.data.recognise import Decision, Recogniser
from slidepack.engine.data.report import CheckOptions, DataReport, Issue, Verdict
from slidepack.engine.data.rows import Format, Reject, Row, clip, encode_row, first_question

MAX_REJECTED_SHARE: Final = 0.3
_FIRST_ROWS: Final = 16
"""Rows after which the family is taken to be known; where it turns out otherwise, all is read
again."""
_LARGE_BYTES: Final = 16 << 20
"""Of a file that keeps two processes busy; a small one is judged before a second has begun."""
_SHOWN_REJECTS: Final = 20
_SHOWN_COLUMNS: Final = 50
_SHOWN_QUESTIONS: Final = 3
_LOSSES: Final[tuple[Repair, ...]] = (
    "nul", "surrogate", "encoding",
    "trailing-user-turn", "trailing-tool-turn", "trailing-system-turn",
)  # fmt: skip
"""Repairs that change what the row says."""
_LOSS: Final = "rows that were mended in a way that changes what they say"

OnBytes = Callable[[int], None]


def check_file(
    path: Path,
    rows_path: Path,
    rejects_path: Path,
    options: CheckOptions | None = None,
) -> DataReport:
    """Check a file as `judge_file` does, and refuse one that cannot be used as it is.

    Raises:
        SlidepackError: why the verdict is `ask` or `refuse`.
    """
    report = judge_file(path, rows_path, rejects_path, options)
    if report.error is not None:
        raise SlidepackError.from_report(report.error)
    return report


def judge_file(
    path: Path,
    rows_path: Path,
    rejects_path: Path,
    options: CheckOptions | None = None,
    progress: OnBytes | None = None,
    name: str | None = None,
) -> DataReport:
    """Check `path`, write its accepted rows and its rejects, and report; a bad file is no error.

    Args:
        path: the user's file.
        rows_path: where the normalised rows go.
        rejects_path: where the rejected rows go, one JSON object a line.
        options: how to read the file.
        progress: called with the number of bytes read.
        name: what the user calls the file, for messages; None for the path's own name.
    """
    asked = options or CheckOptions()
    with contextlib.ExitStack() as stack:
        check = _Pass(path, name or path.name, asked, progress, _linter(path, stack))
        try:
            mapping = mapping_of(asked)
            with rows_path.open("wb") as rows_file, rejects_path.open("wb") as rejects_file:
                check.run(mapping, mapping.family, rows_file, rejects_file)
                best = check.decision.family
                if mapping.family is None and best is not None and best != check.family:
                    for file in (rows_file, rejects_file):
                        file.seek(0)
                        file.truncate()
                    check = _Pass(path, name or path.name, asked, progress, _linter(path, stack))
                    check.run(mapping, best, rows_file, rejects_file)
                for file in (rows_file, rejects_file):
                    # Jobs are pinned to these bytes, so a power cut must not take them.
                    file.flush()
                    os.fsync(file.fileno())
            if mapping.columns:
                require_columns(mapping, check.seen_columns)
        except SlidepackError as error:
            return check.report(error)
        return check.report(check.refusal())


def _linter(path: Path, stack: contextlib.ExitStack) -> Lint | LintProcess:
    """Return what looks at the rows: in a process of its own, where that is worth its start."""
    large = path.is_file() and path.stat().st_size >= _LARGE_BYTES
    return stack.enter_context(LintProcess()) if large else Lint()


class _Pass:
    """One reading of a file."""

    def __init__(
        self,
        path: Path,
        name: str,
        options: CheckOptions,
        progress: OnBytes | None,
        lint: Lint | LintProcess,
    ) -> None:
        self._path = path
        self._name = name
        self._options = options
        self._progress = progress
        self._recogniser = Recogniser()
        self._judge: Judge | None = None
        self._lint = lint
        self._digest = hashlib.sha256()
        self._reasons: Counter[str] = Counter()
        self._first_rejects: list[Reject] = []
        self._questions: list[str] = []
        self._notes: list[str] = []
        self._unknown: set[str] = set()
        """Columns of rows that were read as nothing."""
        self._example: dict[str, Any] = {}
        """The first row of no use to any method."""
        self._rows = 0
        self._accepted = 0
        self._forced = False
        self.family: Format | None = None
        self.decision = Decision(None, (), None)

    @property
    def seen_columns(self) -> set[str]:
        """Columns of the file."""
        return self._judge.seen if self._judge else set()

    def run(
        self, mapping: ColumnMapping, family: Format | None, rows: BinaryIO, rejects: BinaryIO
    ) -> None:
        """Read the file to its end, as `family` or as what its first rows are."""
        self._forced = mapping.family is not None
        values = self._values()
        head = list(itertools.islice(values, _FIRST_ROWS))
        for raw in head:
            self._see(raw)
        self.family = family or self._recogniser.leader()
        if self.family is not None:
            self._judge = Judge(self.family, mapping)
        for raw in head:
            self._take(raw, rows, rejects)
        for raw in values:
            self._see(raw)
            self._take(raw, rows, rejects)
        self.decision = self._recogniser.decide()

    def refusal(self) -> SlidepackError | None:
        """Return why the file cannot be used as it is."""
        if not self._forced and self.decision.error is not None:
            return self.decision.error
        if self.family == "preference":
            return preference_error(self._rows, self._example)
        rejected = self._reasons.total()
        first = self._first_rejects[0] if self._first_rejects else None
        why = f"line {first.line}: {first.reason} ({first.detail})" if first else ""
        if not self._accepted:
            return SlidepackError(
                "DATA-NO-USABLE-ROWS",
                f"None of the {self._rows} rows can be used."
                if self._rows > 1
                else "The only row cannot be used.",
                why=why,
                fix="Mend the rows named, then add the file again.",
            )
        if rejected > MAX_REJECTED_SHARE * self._rows and not self._options.allow_rejects:
            return SlidepackError(
                "DATA-TOO-MANY-REJECTED",
                f"{rejected} of the {self._rows} rows cannot be used.",
                why=f"more than {MAX_REJECTED_SHARE:.0%}; {why}",
                fix="Mend the rows named, or say that the others are enough: --allow-rejects.",
            )
        return None

    def report(self, error: SlidepackError | None) -> DataReport:
        """Return what was found; `error` is why the file cannot be used as it is."""
        judge = self._judge
        lint = self._lint.report()
        warnings = [*self._loss_issues(), *lint.issues]
        rejected = self._reasons.total()
        ignored = judge.ignored() if judge else sorted(map(clip, self._unknown))
        return DataReport(
            family=self.family,
            rows=self._rows,
            accepted=self._accepted,
            repaired=judge.repaired if judge else 0,
            rejected=rejected,
            reasons=dict(sorted(self._reasons.items())),
            repairs={str(name): count for name, count in sorted(judge.repairs.items())}
            if judge
            else {},
            ignored_columns=tuple(ignored[:_SHOWN_COLUMNS]),
            columns=judge.columns() if judge else {},
            choices=self.decision.choices,
            issues=(
                *error_issues(error, self._name),
                *warnings,
                *map(reject_issue, self._first_rejects),
            ),
            first_questions=tuple(self._questions),
            content_hash=self._digest.hexdigest(),
            notes=(
                *self._notes,
                *(judge.notes() if judge else ()),
                *more_ignored(len(ignored) - _SHOWN_COLUMNS),
                *lint.notes,
            ),
            verdict=_verdict(error, bool(warnings or rejected)),
            error=error.report if error else None,
            options=self._options,
        )

    def _values(self) -> Iterator[RawRow | Reject]:
        return read_rows(
            self._path,
            self._notes,
            text_mode=text_mode_of(self._options),
            encoding=self._options.encoding,
            on_bytes=self._progress,
            name=self._name,
        )

    def _see(self, raw: RawRow | Reject) -> None:
        self._rows += 1
        if isinstance(raw, Reject):
            self._recogniser.see_reject()
        else:
            self._recogniser.see(raw.line, raw.value)

    def _take(self, raw: RawRow | Reject, rows: BinaryIO, rejects: BinaryIO) -> None:
        if isinstance(raw, Reject):
            row: Row | Reject = raw
        else:
            row = self._judged(raw)
        if isinstance(row, Reject):
            self._reasons[row.reason] += 1
            rejects.write(msgspec.json.encode(row) + b"\n")
            if len(self._first_rejects) < _SHOWN_REJECTS:
                self._first_rejects.append(row)
            return
        encoded = encode_row(row)
        self._digest.update(encoded)
        rows.write(encoded)
        self._accepted += 1
        self._lint.see(row, encoded)
        if len(self._questions) < _SHOWN_QUESTIONS and (question := first_question(row)):
            self._questions.append(clip(question, 200))

    def _judged(self, raw: RawRow) -> Row | Reject:
        is_object = type(raw.value) is dict
        if self.family == "preference" and is_object:
            self._example = self._example or raw.value
        if self._judge is not None:
            return self._judge.judge(raw.line, raw.value, mended="encoding" in raw.repairs)
        if is_object and len(self._unknown) < MAX_NAMES:
            self._unknown.update(raw.value)
        return Reject(line=raw.line, reason="no-known-form", detail=clip(raw.value))

    def _loss_issues(self) -> list[Issue]:
        if self._judge is None:
            return []
        return [
            Issue(
                line=self._judge.first_repairs[repair],
                code=repair,
                message=f"{_LOSS}: {count}",
                count=count,
            )
            for repair in _LOSSES
            if (count := self._judge.repairs[repair])
        ]


def _verdict(error: SlidepackError | None, odd: bool) -> Verdict:
    if error is None:
        return "warn" if odd else "ok"
    return "ask" if error.report.code == "DATA-AMBIGUOUS" else "refuse"
