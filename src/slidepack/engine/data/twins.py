"""Rows that say the same, within a file and between two of them; only hashes are kept."""

from pathlib import Path
from typing import Final, Literal

import msgspec

from slidepack.engine.data.rows import ChatRow, CompletionRow, Row, TextRow, decode_row, folded_key

_MAX_ROWS: Final = 500_000
"""Rows that are remembered; some 100 MB of memory."""
_SHOWN_LINES: Final = 3


class Twins:
    """Compares each row with those before it."""

    def __init__(self) -> None:
        """Start with no row."""
        self._first_answers: dict[int, int] = {}
        self._other_answers: set[int] = set()
        """Hashes of question and answer, where the question has more than one."""
        self._full = False

    def add(self, row: Row) -> Literal["duplicate-row", "question-twice"] | None:
        """Return what the row shares with an earlier one."""
        question, answer = _hashes(row)
        first = self._first_answers.get(question)
        if first is None:
            if not self._is_full():
                self._first_answers[question] = answer
            return None
        if first == answer:
            return "duplicate-row"
        both = hash((question, answer))
        if both in self._other_answers:
            return "duplicate-row"
        if not self._is_full():
            self._other_answers.add(both)
        return "question-twice"

    def notes(self) -> list[str]:
        """Return what was not compared."""
        if not self._full:
            return []
        return [f"Twins were looked for among the first {_MAX_ROWS} different rows only."]

    def _is_full(self) -> bool:
        if len(self._first_answers) + len(self._other_answers) >= _MAX_ROWS:
            self._full = True
        return self._full


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one file that ask what a row of another file asks."""

    rows: int
    first_lines: tuple[int, ...]


def overlap(training: Path, held_out: Path) -> Overlap:
    """Return the rows of `held_out` whose question stands in `training`, both normalised files.

    Case and white space do not count, as in the split of one file.
    """
    with training.open("rb") as file:
        known = {_question_hash(decode_row(line)) for line in file}
    rows = 0
    first: list[int] = []
    with held_out.open("rb") as file:
        for line in file:
            row = decode_row(line)
            if _question_hash(row) in known:
                rows += 1
                if len(first) < _SHOWN_LINES:
                    first.append(row.line)
    return Overlap(rows=rows, first_lines=tuple(first))


def _question_hash(row: Row) -> int:
    return hash(folded_key(row))


def _hashes(row: Row) -> tuple[int, int]:
    """Return the hashes of what a row asks and of what it answers."""
    if isinstance(row, ChatRow):
        turns = row.messages
        asked = 0
        while asked < len(turns) and turns[asked].role != "assistant":
            asked += 1
        return hash(turns[:asked]) if asked else hash(turns), hash((turns[asked:], row.tools))
    if isinstance(row, CompletionRow):
        # Without a prompt, nothing is asked twice.
        return hash(row.prompt or row.completion), hash(row.completion)
    if isinstance(row, TextRow):
        return hash(row.text), 0
    return hash(row.ids), hash(row.supervised)
