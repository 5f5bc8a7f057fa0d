"""Splits depend on what a row asks, and on nothing else."""

from collections import Counter
from collections.abc import Callable

import pytest

from slidepack.engine.data.rows import ChatRow, CompletionRow, Row, TextRow, TokensRow, Turn
from slidepack.engine.data.split import split_of


def _rows(count: int) -> list[Row]:
    return [
        ChatRow(i, (Turn("user", f"question {i}", False), Turn("assistant", "a")))
        for i in range(count)
    ]


def test_fractions_are_about_right() -> None:
    counts = Counter(split_of(row, 7, 0.1, 0.05) for row in _rows(10_000))
    # Five standard deviations of a binomial.
    assert abs(counts["selection"] - 1000) < 150
    assert abs(counts["test"] - 500) < 110
    assert counts.total() == 10_000


def test_nothing_is_held_out_where_nothing_is_asked_for() -> None:
    assert {split_of(row, 7, 0.0, 0.0) for row in _rows(1000)} == {"train"}


def test_twins_stay_together() -> None:
    for index in range(300):
        twins: list[Row] = [
            ChatRow(1, (Turn("user", f"What  is {index}?", False), Turn("assistant", "a"))),
            ChatRow(9, (Turn("user", f" what is {index}?\n", False), Turn("assistant", "b"))),
            ChatRow(
                5,
                (
                    Turn("system", "s", False),
                    Turn("user", f"WHAT IS {index}?", False),
                    Turn("assistant", "c"),
                ),
            ),
            CompletionRow(2, f"what is {index}?", "d"),
        ]
        assert len({split_of(row, 3, 0.25, 0.25) for row in twins}) == 1


def test_a_rows_split_hangs_on_the_seed_and_not_on_its_neighbours() -> None:
    rows = _rows(500)
    first = [split_of(row, 1, 0.2, 0.1) for row in rows]
    # Lines move when rows are added before them.
    moved = [
        split_of(ChatRow(row.line + 40, row.messages), 1, 0.2, 0.1)
        for row in rows
        if isinstance(row, ChatRow)
    ]
    assert first == moved
    assert first != [split_of(row, 2, 0.2, 0.1) for row in rows]


WITHOUT_QUESTION: dict[str, Callable[[int], Row]] = {
    "completion": lambda i: CompletionRow(i, " ", f"text {i}"),
    "conversation": lambda i: ChatRow(
        i, (Turn("system", "s", False), Turn("assistant", f"text {i}"))
    ),
    "text": lambda i: TextRow(i, f"text {i}"),
    "tokens": lambda i: TokensRow(i, (i, i + 1), (True, True)),
}


@pytest.mark.parametrize("kind", WITHOUT_QUESTION)
def test_rows_without_a_question_do_not_all_fall_on_one_side(kind: str) -> None:
    rows = [WITHOUT_QUESTION[kind](i) for i in range(200)]
    assert {split_of(row, 1, 0.25, 0.25) for row in rows} == {"train", "selection", "test"}
