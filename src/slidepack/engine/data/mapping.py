"""Columns that the user assigns by hand: `--map output=answer --map instruction=question`.

A part of an object is named behind its column and a dot: `--map output=pos_answer.answer`.
"""

from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.columns import ROLES
from slidepack.engine.data.plain_text import TextMode
from slidepack.engine.data.report import CheckOptions
from slidepack.engine.data.rows import FORMATS, Format, clip


class ColumnMapping(msgspec.Struct, frozen=True):
    """What the user said about a file's columns."""

    family: Format | None
    """None where the rows must tell."""
    columns: dict[str, str]
    """Role to column; roles that are not here go by their usual names."""


def parse_columns(assignments: Iterable[str]) -> dict[str, str]:
    """Return role to column from `ROLE=COLUMN` texts.

    Raises:
        SlidepackError: DATA-MAPPING-INVALID.
    """
    columns: dict[str, str] = {}
    for text in assignments:
        role, equals, column = text.partition("=")
        role = role.strip()
        if not equals or not role or not column:
            raise _invalid(f"{clip(text)} is no mapping.", "", "Write ROLE=COLUMN.")
        if role in columns:
            raise _invalid(
                f"The role {clip(role)} is given twice.", clip(text), "Give each role one column."
            )
        columns[role] = column
    return columns


def mapping_of(options: CheckOptions) -> ColumnMapping:
    """Return what the options say about family and columns, made sure of.

    Raises:
        SlidepackError: DATA-FORMAT-UNKNOWN or DATA-MAPPING-INVALID.
    """
    text_mode_of(options)
    family = known_format(options.form)
    if not options.columns:
        return ColumnMapping(family, {})
    fitting = [
        name
        for name in ((family,) if family else FORMATS)
        if options.columns.keys() <= ROLES[name].keys()
    ]
    # ShareGPT is chat with other words; both are read the same way.
    if "chat" in fitting and "sharegpt" in fitting:
        fitting.remove("sharegpt")
    if not fitting:
        raise _invalid(
            "These roles belong to no family of rows together.",
            f"given: {clip(', '.join(options.columns))}"
            + (f" for {family}, whose roles are {', '.join(ROLES[family])}" if family else ""),
            f"Use the roles of one family: {_all_roles()}.",
        )
    if len(fitting) > 1:
        raise _invalid(
            "These roles belong to more than one family of rows.",
            f"{', '.join(options.columns)}: {', '.join(fitting)}",
            f"Say which one: --format {' or '.join(fitting)}.",
        )
    return ColumnMapping(fitting[0], dict(options.columns))


def known_format(form: str | None) -> Format | None:
    """Return the family of that name, or None where none is named.

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


def text_mode_of(options: CheckOptions) -> TextMode | None:
    """Return what becomes a row of plain text; None where the user does not speak of text.

    Raises:
        SlidepackError: DATA-FORMAT-UNKNOWN.
    """
    if options.text_mode is None:
        return "document" if options.form == "text" else None
    modes: tuple[TextMode, ...] = get_args(TextMode)
    for mode in modes:
        if options.text_mode == mode:
            return mode
    raise SlidepackError(
        "DATA-FORMAT-UNKNOWN",
        f"Text is not read by {clip(options.text_mode)}.",
        fix=f"Use one of {', '.join(modes)}.",
    )


def unfold(row: dict[str, Any], column: str) -> dict[str, Any]:
    """Return the row with the parts of an object as columns, where `column` is one of them.

    A column that has the dot in its own name is taken before a part.
    """
    dot = column.find(".")
    while dot != -1 and column not in row:
        outer = column[:dot]
        parts = row.get(outer)
        if isinstance(parts, dict):
            others = {name: value for name, value in row.items() if name != outer}
            row = {f"{outer}.{name}": value for name, value in parts.items()} | others
        dot = column.find(".", dot + 1)
    return row


def require_columns(mapping: ColumnMapping, seen: Iterable[str]) -> None:
    """Refuse columns that the file does not have.

    Raises:
        SlidepackError: DATA-MAPPING-INVALID, naming the columns that are there.
    """
    known = sorted(seen)
    for role, column in mapping.columns.items():
        if column not in known:
            raise _invalid(
                f"There is no column called {clip(column)}.",
                f"mapped to {role}; the columns are {clip(', '.join(known), 400) or 'none'}",
                "Name one of these columns, or a part of one that is an object: COLUMN.PART.",
            )


def _all_roles() -> str:
    return "; ".join(f"{family}: {', '.join(roles)}" for family, roles in ROLES.items())


def _invalid(what: str, why: str, fix: str) -> SlidepackError:
    return SlidepackError("DATA-MAPPING-INVALID", what, why=why, fix=fix)
