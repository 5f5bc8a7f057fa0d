"""A check's verdict as the page shows it, and the form by which a file is read in another way."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slidepack.daemon.first_look import ColumnSeen, Preview, RowSeen, preview_rows
from slidepack.daemon.service import Service
from slidepack.daemon.store.catalogue import DatasetRecord
from slidepack.daemon.uploads import Checked
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.columns import REQUIRED, ROLES
from slidepack.engine.data.encoding import ENCODINGS
from slidepack.engine.data.report import CheckOptions, DataReport
from slidepack.engine.data.rows import Format

__all__ = [
    "FamilyChoice",
    "RoleChoice",
    "VerdictView",
    "options_of",
    "preview_of",
    "reading_view",
    "verdict_view",
]

_FAMILIES: Final[dict[Format, str]] = {
    "chat": "Conversations",
    "sharegpt": "ShareGPT conversations",
    "qa": "Question and answer",
    "alpaca": "Instruction, input, output",
    "completion": "Prompt and completion",
    "text": "Plain text",
    "tokens": "Token ids",
}
_TEXT_MODES: Final = ("document", "paragraph", "line")


@dataclass(frozen=True, kw_only=True, slots=True)
class RoleChoice:
    """A role that a column can play."""

    name: str
    required: bool
    column: str
    """Chosen; empty leaves it to the usual names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyChoice:
    """What rows can be read as."""

    name: str
    title: str
    rows: int
    """Of the file, that fit it; 0 where that is not known."""
    chosen: bool
    roles: tuple[RoleChoice, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VerdictView:
    """What a check came to."""

    name: str
    report: DataReport
    dataset: DatasetRecord | None
    """None where the file cannot be used as it is."""
    draft: str
    """The upload that waits to be read in another way; empty where there is none."""
    replaces: int | None
    """A dataset that goes where the upload becomes another one."""
    rows: tuple[RowSeen, ...]
    columns: tuple[ColumnSeen, ...]
    families: tuple[FamilyChoice, ...]
    encodings: tuple[str, ...]
    text_modes: tuple[str, ...]


def verdict_view(checked: Checked, replaces: int | None = None) -> VerdictView:
    """Return a check as it is shown."""
    return VerdictView(
        name=checked.name,
        report=checked.report,
        dataset=checked.dataset,
        draft=checked.draft or "",
        replaces=replaces,
        rows=checked.rows,
        columns=checked.columns,
        families=_families(checked.report, checked.columns),
        encodings=tuple(ENCODINGS),
        text_modes=_TEXT_MODES,
    )


def reading_view(
    dataset: DatasetRecord, draft: str, columns: tuple[ColumnSeen, ...], rows: tuple[RowSeen, ...]
) -> VerdictView:
    """Return the form by which a dataset is read in another way."""
    return VerdictView(
        name=dataset.name,
        report=dataset.report,
        dataset=None,
        draft=draft,
        replaces=dataset.id,
        rows=rows,
        columns=columns,
        families=_families(dataset.report, columns),
        encodings=tuple(ENCODINGS),
        text_modes=_TEXT_MODES,
    )


def options_of(fields: Mapping[str, str]) -> CheckOptions:
    """Return how the form says that a file is read; what is left empty is found out.

    The columns of the family that is chosen count: fields are called FAMILY.ROLE.
    """
    family = fields.get("format", "").strip()
    columns = {
        name.removeprefix(f"{family}."): column
        for name, column in fields.items()
        if family and name.startswith(f"{family}.") and column
    }
    return CheckOptions(
        form=family or None,
        columns=columns,
        allow_rejects=fields.get("allow_rejects") == "true",
        text_mode=fields.get("text_mode") or None,
        encoding=fields.get("encoding") or None,
    )


def preview_of(service: Service, draft_id: str, options: CheckOptions) -> Preview:
    """Return the first rows of an upload as they would be read.

    Raises:
        SlidepackError: DATA-NOT-FOUND, DATA-MAPPING-INVALID, DATA-FORMAT-UNKNOWN.
    """
    files: list[tuple[str, Path]] = service.uploads.drafts.paths(draft_id)
    if not options.form:
        raise SlidepackError(
            "DATA-FORMAT-UNKNOWN",
            "What are the rows to be read as?",
            fix="Choose one of the kinds.",
        )
    return preview_rows(files[0][1], options, name=files[0][0])


def _families(report: DataReport, columns: tuple[ColumnSeen, ...]) -> tuple[FamilyChoice, ...]:
    fitting = {choice.family: choice.rows for choice in report.choices}
    asked = report.options.form
    chosen = asked if asked in _FAMILIES else _likely(report, columns)
    given = report.options.columns
    found = report.columns if report.family == chosen else {}
    return tuple(
        FamilyChoice(
            name=family,
            title=title,
            rows=fitting.get(family, 0),
            chosen=family == chosen,
            roles=tuple(
                RoleChoice(
                    name=role,
                    required=role in REQUIRED[family],
                    column=_column(role, given, found if family == chosen else {}, columns),
                )
                for role in ROLES[family]
            ),
        )
        for family, title in _FAMILIES.items()
    )


def _likely(report: DataReport, columns: tuple[ColumnSeen, ...]) -> str:
    if report.family in _FAMILIES:
        return str(report.family)
    # A table of two columns or more that nobody recognised is most often questions and answers.
    return "qa" if len(columns) > 1 else "text"


def _column(
    role: str,
    given: Mapping[str, str],
    found: Mapping[str, str],
    columns: tuple[ColumnSeen, ...],
) -> str:
    wanted = given.get(role) or found.get(role, "")
    return wanted if any(column.name == wanted for column in columns) else ""
