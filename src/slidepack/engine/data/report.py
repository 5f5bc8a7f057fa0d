"""What a check of a data file found: the one object that CLI, API, page and database share."""

from typing import Any, Final, Literal

import msgspec

from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.data.rows import Format

Verdict = Literal["ok", "warn", "ask", "refuse"]
Level = Literal["error", "warning", "reject"]

_OLD_NAMES: Final = {
    "format": "family",
    "usable": "accepted",
    "ignored_fields": "ignored_columns",
}


class CheckOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the user wants a file to be read; what is not given is found out."""

    form: str | None = None
    """Family of the rows."""
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    """Role to column, as `--map ROLE=COLUMN` says it."""
    allow_rejects: bool = False
    """Take a file of which more than the usual share is left out."""
    text_mode: str | None = None
    """How plain text becomes rows."""
    encoding: str | None = None
    """Of a text file."""


class Issue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that the user should look at."""

    line: int
    """Where it is seen first; 0 for the file as a whole."""
    code: str
    """An error's code, a reason of a rejected row, or the name of a warning."""
    message: str
    level: Level = "warning"
    count: int = 1
    """Rows that are concerned."""


class Choice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A family that fits a file, and how many of its rows."""

    family: Format
    rows: int


class FileReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several files that were read as one."""

    name: str
    lines_before: int
    """What its own line numbers have become more by, in the rows and issues of the whole."""
    rows: int
    accepted: int
    rejected: int


class DataReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a check found."""

    family: Format | None
    """What the rows were read as; where the verdict is `ask`, what fits best."""
    rows: int
    """Rows in the file, accepted or not."""
    accepted: int
    """Rows that can be learned from, mended ones among them."""
    repaired: int = 0
    """Accepted rows in which something was mended."""
    rejected: int
    reasons: dict[str, int]
    """Rejected rows by reason."""
    repairs: dict[str, int] = msgspec.field(default_factory=dict)
    """Accepted rows by what was mended."""
    ignored_columns: tuple[str, ...]
    """Columns of the file that no prompt sees."""
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    """Each role of any accepted row, to the column that plays it in most of them."""
    choices: tuple[Choice, ...] = ()
    """Families that fit, the best first; more than one is a question to the user."""
    issues: tuple[Issue, ...] = ()
    """The error, then the warnings, then the first rejected rows; all of those stand in
    `rejects.jsonl`."""
    first_questions: tuple[str, ...] = ()
    """What the first accepted rows ask, clipped."""
    content_hash: str
    """sha256 of the normalised rows."""
    notes: tuple[str, ...] = ()
    """What was done to the file and to its rows so that they could be read, in sentences."""
    verdict: Verdict = "ok"
    error: ErrorReport | None = None
    """Why the verdict is `ask` or `refuse`."""
    options: CheckOptions = msgspec.field(default_factory=CheckOptions)
    """What the user asked for."""
    files: tuple[FileReport, ...] = ()
    """In the order of their rows; empty where there is one file."""

    def place(self, line: int) -> tuple[str, int]:
        """Return the file that a line is in, and which line of it; no name where there is one."""
        found = "", 0
        for file in self.files:
            if line > file.lines_before or not found[0]:
                found = file.name, file.lines_before
        return found[0], line - found[1]


def decode_report(data: bytes | str) -> DataReport:
    """Parse a stored report, of this version or of the one that knew three formats."""
    value: dict[str, Any] = msgspec.json.decode(data)
    if "usable" in value:
        value = {_OLD_NAMES.get(name, name): part for name, part in value.items()}
        value["issues"] = [
            {
                "line": reject["line"],
                "code": reject["reason"],
                "message": reject["detail"],
                "level": "reject",
            }
            for reject in value.pop("first_rejects")
        ]
        value["verdict"] = "warn" if value["rejected"] else "ok"
    return msgspec.convert(value, DataReport)
