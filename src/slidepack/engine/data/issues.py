"""What a report shows of an error, of rows that are left out, and of what it does not list."""

import re
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.report import Issue
from slidepack.engine.data.rows import Reject

__all__ = ["error_issues", "more_ignored", "reject_issue"]

_LINE: Final = re.compile(r"(?:^|: |; )line (\d+)\b")
"""How our errors name a line in their `why`: an error has no field for it."""


def error_issues(error: SlidepackError | None, name: str) -> list[Issue]:
    """Return the issue of an error that ended the reading, or none.

    Args:
        error: what ended it.
        name: of the file, as the error may begin with it.
    """
    if error is None:
        return []
    report = error.report
    text = f"{report.what} {report.why}".strip()
    # A file may itself be called `of: line 5.jsonl`.
    named = _LINE.search(report.why.removeprefix(name))
    line = int(named[1]) if named else 0
    return [Issue(line=line, code=report.code, message=text, level="error")]


def more_ignored(count: int) -> list[str]:
    """Return a note on so many ignored columns that are not listed; none for none."""
    return [f"Ignored columns that are not listed: {count}."] if count > 0 else []


def reject_issue(reject: Reject) -> Issue:
    """Return the issue of a row that is left out."""
    return Issue(line=reject.line, code=reject.reason, message=reject.detail, level="reject")
