"""What a user is shown of a data file while choosing how it is read: columns and first rows."""

import itertools
from pathlib import Path
from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.judge import Judge
from slidepack.engine.data.mapping import mapping_of, text_mode_of
from slidepack.engine.data.reading import read_rows
from slidepack.engine.data.report import CheckOptions
from slidepack.engine.data.rows import (
    ChatRow,
    CompletionRow,
    Reject,
    Row,
    TextRow,
    TokensRow,
    clip,
    decode_row,
    mend_text,
)

__all__ = [
    "ColumnSeen",
    "Preview",
    "RowSeen",
    "Spoken",
    "columns_seen",
    "preview_rows",
    "row_characters",
    "rows_seen",
]

_LOOKED_AT: Final = 50
_MOST_COLUMNS: Final = 60
_EXAMPLE_CHARACTERS: Final = 120
_TEXT_CHARACTERS: Final = 600
_MOST_TURNS: Final = 8
_LONGEST_NAME: Final = 1000
"""Characters. Longer ones are texts in the wrong place, sixty of which would fill a page."""


class ColumnSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A column, or a part of one that is an object."""

    name: str
    """As it is mapped."""
    example: str
    """Its first value that is not empty, clipped."""


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a row."""

    role: str
    """`system`, `user`, `assistant`, `tool`, `prompt`, `completion`, `text` or `tokens`."""
    text: str
    """Clipped."""
    learned: bool
    """Whether the loss counts it."""


class RowSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A row as it was read."""

    line: int
    parts: tuple[Spoken, ...]


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The first rows as they would be read."""

    rows: tuple[RowSeen, ...]
    rejects: tuple[Reject, ...]
    """Of the rows that were looked at."""


def columns_seen(path: Path, options: CheckOptions) -> tuple[ColumnSeen, ...]:
    """Return the columns of a file's first rows; none where the file cannot be read at all."""
    found: dict[str, str] = {}
    try:
        rows = read_rows(path, [], text_mode=text_mode_of(options), encoding=options.encoding)
        for raw in itertools.islice(rows, _LOOKED_AT):
            if not isinstance(raw, Reject) and type(raw.value) is dict:
                _note(found, raw.value)
    except SlidepackError:
        # The report of the check says what is wrong with it.
        return ()
    return tuple(ColumnSeen(name=name, example=text) for name, text in found.items())


def rows_seen(rows_path: Path, count: int = 3) -> tuple[RowSeen, ...]:
    """Return the first normalised rows; none where there is no such file."""
    try:
        with rows_path.open("rb") as lines:
            rows = [decode_row(line) for line in itertools.islice(lines, count)]
    except (FileNotFoundError, msgspec.DecodeError):
        return ()
    return tuple(RowSeen(line=row.line, parts=_parts(row)) for row in rows)


def preview_rows(
    path: Path, options: CheckOptions, count: int = 3, name: str | None = None
) -> Preview:
    """Return the first rows of a file as they would be read, without reading all of it.

    Args:
        path: of the file.
        options: how to read it; they name what the rows are.
        count: rows to show, at most.
        name: what the user calls the file, for messages; None for the path's own name.

    Raises:
        SlidepackError: DATA-MAPPING-INVALID, DATA-FORMAT-UNKNOWN, and what reading raises.
    """
    mapping = mapping_of(options)
    if mapping.family is None:
        return Preview(rows=(), rejects=())
    judge = Judge(mapping.family, mapping)
    rows: list[Row] = []
    rejects: list[Reject] = []
    mode = text_mode_of(options)
    raws = read_rows(path, [], text_mode=mode, encoding=options.encoding, name=name)
    for raw in itertools.islice(raws, _LOOKED_AT):
        found: Row | Reject = raw if isinstance(raw, Reject) else judge.judge(raw.line, raw.value)
        if isinstance(found, Reject):
            rejects.append(found)
        else:
            rows.append(found)
        if len(rows) == count:
            break
    return Preview(
        rows=tuple(RowSeen(line=row.line, parts=_parts(row)) for row in rows),
        rejects=tuple(rejects[:count]),
    )


def row_characters(row: Row) -> int:
    """Return the characters of a row's texts; of ready-made ids, how many there are."""
    match row:
        case ChatRow():
            return sum(
                len(turn.content) + len(turn.reasoning) + len(turn.tool_calls)
                for turn in row.messages
            )
        case CompletionRow():
            return len(row.prompt) + len(row.completion)
        case TextRow():
            return len(row.text)
        case TokensRow():
            return len(row.ids)


def _note(found: dict[str, str], row: dict[str, object]) -> None:
    for name, value in row.items():
        _note_one(found, name, value)
        if type(value) is dict:
            for part, inner in value.items():
                _note_one(found, f"{name}.{part}", inner)


def _note_one(found: dict[str, str], name: str, value: object) -> None:
    if not _is_mappable(name):
        return
    if name in found or len(found) < _MOST_COLUMNS:
        found[name] = found.get(name) or clip(
            value if value is not None else "", _EXAMPLE_CHARACTERS
        )


def _is_mappable(name: str) -> bool:
    """Return whether a column can be named in a request: what UTF-8 and a form can hold."""
    return 0 < len(name) <= _LONGEST_NAME and mend_text(name) == name


def _parts(row: Row) -> tuple[Spoken, ...]:
    match row:
        case ChatRow():
            turns = row.messages[:_MOST_TURNS]
            return tuple(
                _spoken(turn.role, turn.content, turn.role == "assistant" and turn.train)
                for turn in turns
            )
        case CompletionRow():
            return (
                _spoken("prompt", row.prompt, False),
                _spoken("completion", row.completion, True),
            )
        case TextRow():
            return (_spoken("text", row.text, True),)
        case TokensRow():
            shown = " ".join(map(str, row.ids[:_EXAMPLE_CHARACTERS]))
            return (_spoken("tokens", shown, any(row.supervised)),)


def _spoken(role: str, text: str, learned: bool) -> Spoken:
    short = text if len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]}…"
    return Spoken(role=role, text=short, learned=learned)
