"""Judges row after row of one family: accepted, mended and accepted, or rejected with a reason."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from slidepack.engine.data.columns import ROLES, Options, columns_of, is_conversation
from slidepack.engine.data.families.cells import REPAIRS, Cells, RejectedError, Repair
from slidepack.engine.data.families.table import CONVERTERS
from slidepack.engine.data.mapping import ColumnMapping, unfold
from slidepack.engine.data.rows import Format, Reject, Row, clip

MAX_NAMES: Final = 10_000
"""A file whose rows have keys of their own (ids, say) must not fill the memory with them."""
_SHOWN_NAMES: Final = 5
_NOTHING: Final[tuple[Any, ...]] = (None, "", [], {})


class Judge:
    """Turns the rows of one file into canonical ones, and counts what it does."""

    def __init__(self, family: Format, mapping: ColumnMapping | None = None) -> None:
        """Start with nothing seen."""
        self.family = family
        self._given = mapping.columns if mapping else {}
        self._parts = [column for column in self._given.values() if "." in column]
        """Columns that may be parts of objects."""
        self._convert = CONVERTERS[family]
        self._cells = Cells()
        self._finders: dict[tuple[str, ...], _Finder] = {}
        self.seen: set[str] = set()
        """Columns of the file."""
        self._uses: Counter[tuple[tuple[str, str], ...]] = Counter()
        """Accepted rows by the role and column pairs that they were read with."""
        self._spare: set[str] = set()
        """Columns that are filled in an accepted row and that its prompt does not see."""
        self.repaired = 0
        self.repairs: Counter[Repair] = Counter()
        """Accepted rows by what was mended in them."""
        self.first_repairs: dict[Repair, int] = {}
        """The line of the first of them."""

    def judge(self, line: int, value: Any, *, mended: bool = False) -> Row | Reject:
        """Return the row in canonical form, or why it is left out.

        Args:
            line: of the file.
            value: the row.
            mended: bytes of it that are no text were replaced as it was read.
        """
        if type(value) is not dict:
            return Reject(line=line, reason="not-an-object", detail=clip(value))
        for column in self._parts:
            value = unfold(value, column)
        key = tuple(value)
        finder = self._finders.get(key) or self._new_finder(key)
        cells = self._cells
        cells.open(value, finder.find(value))
        try:
            row = self._convert(line, cells)
        except RejectedError as rejected:
            return Reject(line=line, reason=rejected.reason, detail=rejected.detail)
        pairs = finder.pairs()
        if pairs in self._uses or len(self._uses) < MAX_NAMES:
            self._uses[pairs] += 1
        for name in finder.spare():
            if name in self.seen and name not in self._spare and value[name] not in _NOTHING:
                self._spare.add(name)
        if mended:
            cells.repairs.add("encoding")
        if cells.repairs:
            self.repaired += 1
            for repair in cells.repairs:
                self.repairs[repair] += 1
                self.first_repairs.setdefault(repair, line)
        return row

    def ignored(self) -> list[str]:
        """Return the names of columns, and of parts of messages, that no prompt sees."""
        used = {column for pairs in self._uses for _, column in pairs}
        unseen = (self.seen - used) | self._spare | self._cells.unread
        return sorted({clip(name) for name in unseen})

    def columns(self) -> dict[str, str]:
        """Return each role of any accepted row, to the column that plays it in most of them."""
        return {role: columns.most_common(1)[0][0] for role, columns in self._by_role().items()}

    def notes(self) -> list[str]:
        """Return a sentence for each kind of repair, and for each role with several columns."""
        mended = [
            f"{what}: {self.repairs[repair]} (the first is line {self.first_repairs[repair]})."
            for repair, what in REPAIRS.items()
            if self.repairs[repair]
        ]
        several = [
            f"Rows by the column that is their {role}: "
            + ", ".join(f"{clip(name)} {rows}" for name, rows in columns.most_common(_SHOWN_NAMES))
            + "."
            for role, columns in self._by_role().items()
            if len(columns) > 1
        ]
        return mended + several

    def _by_role(self) -> dict[str, Counter[str]]:
        roles: dict[str, Counter[str]] = {role: Counter() for role in ROLES[self.family]}
        for pairs, rows in self._uses.items():
            for role, column in pairs:
                roles[role][column] += rows
        return {role: columns for role, columns in roles.items() if columns}

    def _new_finder(self, names: tuple[str, ...]) -> "_Finder":
        finder = _Finder(self.family, names, self._given)
        if len(self._finders) < MAX_NAMES:
            self._finders[names] = finder
        if len(self.seen) < MAX_NAMES:
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
        self._noted: Mapping[str, str] | None = None
        """What `_pairs` and `_spare` are of."""
        self._pairs: tuple[tuple[str, str], ...] = ()
        self._spare: tuple[str, ...] = ()

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return role and column, as the last row had them."""
        if self._noted is not self.last:
            self._noted = self.last
            self._pairs = tuple(self.last.items())
            used = set(self.last.values())
            self._spare = tuple(name for name in self._names if name not in used)
        return self._pairs

    def spare(self) -> tuple[str, ...]:
        """Return the columns that played no role in the row that `pairs` was asked of last."""
        return self._spare

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
