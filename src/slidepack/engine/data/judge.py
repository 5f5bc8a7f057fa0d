"""Judges row after row of one family: accepted, mended and accepted, or rejected with a reason."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from slidepack.engine.data.columns import ROLES, Options, columns_of, is_conversation
from slidepack.engine.data.families.cells import REPAIRS, Cells, RejectedError, Repair
from slidepack.engine.data.families.table import CONVERTERS
from slidepack.engine.data.mapping import ColumnMapping
from slidepack.engine.data.rows import Format, Reject, Row, clip

_MAX_NAMES: Final = 10_000
"""A file whose rows have keys of their own (ids, say) must not fill the memory with them."""


class Judge:
    """Turns the rows of one file into canonical ones, and counts what it does."""

    def __init__(self, family: Format, mapping: ColumnMapping | None = None) -> None:
        """Start with nothing seen."""
        self.family = family
        self._given = mapping.columns if mapping else {}
        self._convert = CONVERTERS[family]
        self._cells = Cells()
        self._finders: dict[tuple[str, ...], _Finder] = {}
        self.seen: set[str] = set()
        """Columns of the file."""
        self._used: set[str] = set()
        self._noted: Mapping[str, str] = {}
        """The columns that were put into `_used` last."""
        self.repaired = 0
        self.repairs: Counter[Repair] = Counter()
        """Accepted rows by what was mended in them."""
        self.first_repairs: dict[Repair, int] = {}
        """The line of the first of them."""

    def judge(self, line: int, value: Any) -> Row | Reject:
        """Return the row in canonical form, or why it is left out."""
        if type(value) is not dict:
            return Reject(line=line, reason="not-an-object", detail=clip(value))
        key = tuple(value)
        finder = self._finders.get(key) or self._new_finder(key)
        cells = self._cells
        cells.open(value, finder.find(value))
        try:
            row = self._convert(line, cells)
        except RejectedError as rejected:
            return Reject(line=line, reason=rejected.reason, detail=rejected.detail)
        finder.uses += 1
        if finder.last is not self._noted:
            self._noted = finder.last
            self._used.update(finder.last.values())
        if cells.repairs:
            self.repaired += 1
            for repair in cells.repairs:
                self.repairs[repair] += 1
                self.first_repairs.setdefault(repair, line)
        return row

    def ignored(self) -> list[str]:
        """Return the names of columns, and of parts of messages, that no prompt sees."""
        return sorted({clip(name) for name in (self.seen - self._used) | self._cells.unread})

    def columns(self) -> dict[str, str]:
        """Return role to column, as most accepted rows have it."""
        best = max(self._finders.values(), key=lambda finder: finder.uses, default=None)
        return dict(best.last) if best and best.uses else {}

    def notes(self) -> list[str]:
        """Return a sentence for each kind of repair that accepted rows needed."""
        return [
            f"{what}: {self.repairs[repair]} (the first is line {self.first_repairs[repair]})."
            for repair, what in REPAIRS.items()
            if self.repairs[repair]
        ]

    def _new_finder(self, names: tuple[str, ...]) -> "_Finder":
        finder = _Finder(self.family, names, self._given)
        if len(self._finders) < _MAX_NAMES:
            self._finders[names] = finder
        if len(self.seen) < _MAX_NAMES:
            self.seen.update(names)
        return finder


class _Finder:
    """Finds the columns of rows that have the same names."""

    def __init__(self, family: Format, names: tuple[str, ...], given: Mapping[str, str]) -> None:
        self._names = names
        self._options: Options = columns_of(family, names, given)
        self._talks = "messages" in ROLES[family] and "messages" not in given
        self._varies = any(len(columns) > 1 for columns in self._options.values())
        self.last = {role: columns[0] for role, columns in self._options.items()}
        """Role to column, as the last row had it."""
        self.uses = 0

    def find(self, row: dict[str, Any]) -> dict[str, str]:
        """Return role to column: of those that may play a role, the first that is filled."""
        if self._varies:
            self.last = {
                role: next((name for name in columns if row[name] is not None), columns[0])
                for role, columns in self._options.items()
            }
        if self._talks:
            column = self.last.get("messages")
            if column is None or not is_conversation(row[column]):
                self._find_talk(row)
        return self.last

    def _find_talk(self, row: dict[str, Any]) -> None:
        """Take the first column that holds a conversation, whatever it is called."""
        for name in self._names:
            if is_conversation(row[name]):
                self.last = {**self.last, "messages": name}
                return
