"""The order of the walk, and what it says comes next."""

import pytest

from slidepack.engine.sliding.rows import GRADIENT, DeviceRows
from slidepack.engine.sliding.walk import Ahead, fetch_down, fetch_up, snake, turns

COUNTS = (1, 2, 3, 5, 8)


class _Wanted(DeviceRows):
    def __init__(self) -> None:
        super().__init__()
        self.keys: list[tuple[int, int]] = []

    def prefetch(self, key: tuple[int, int]) -> None:
        self.keys.append(key)


@pytest.mark.parametrize("count", COUNTS)
def test_each_level_begins_where_the_one_before_ended(count: int) -> None:
    assert list(snake(-1, count)) == list(range(count))
    for level in range(5):
        assert list(snake(level, count)) == list(reversed(snake(level - 1, count)))


@pytest.mark.parametrize("count", COUNTS)
def test_turns_are_the_order(count: int) -> None:
    order = snake(0, count)
    found = list(turns(order, snake(1, count)))
    assert [turn.micro for turn in found] == list(order)
    assert [turn.first for turn in found] == [True] + [False] * (count - 1)
    assert [turn.last for turn in found] == [False] * (count - 1) + [True]


def test_what_comes_next_is_said_across_the_end_of_a_layer() -> None:
    one, two, three = turns([2, 1, 0], [0, 1, 2])
    assert one.ahead == (Ahead(0, 1, False), Ahead(0, 0, False))
    assert two.ahead == (Ahead(0, 0, False), Ahead(1, 0, False))
    # Micro-batch 0 of the next layer is what this pass makes.
    assert three.ahead == (Ahead(1, 0, False), Ahead(1, 1, True))


def test_at_the_end_of_the_walk_nothing_comes_next() -> None:
    assert [turn.ahead for turn in turns([0, 1])] == [(Ahead(0, 1, False),), ()]


def test_the_way_up_fetches_what_is_made() -> None:
    rows = _Wanted()
    for turn in turns([2, 1, 0], [0, 1, 2]):
        fetch_up(rows, 4, turn.ahead)
    assert rows.keys == [(4, 1), (4, 0), (4, 0), (5, 1)]


def test_the_way_down_fetches_inputs_early_and_gradients_once_they_are_made() -> None:
    head, layer, lowest, below = _Wanted(), _Wanted(), _Wanted(), _Wanted()
    for turn in turns([1, 0], [0, 1]):
        fetch_down(head, 4, turn.ahead, is_head=True)
        fetch_down(layer, 3, turn.ahead)
        fetch_down(lowest, 0, turn.ahead)
    for turn in turns([1, 0]):
        fetch_down(below, GRADIENT, turn.ahead)
    assert head.keys == [(4, 0), (3, 0), (3, 0), (3, 1), (GRADIENT, 1)]
    assert layer.keys == [(3, 0), (GRADIENT, 0), (2, 0), (2, 0), (2, 1), (GRADIENT, 1)]
    assert lowest.keys == [(0, 0), (GRADIENT, 0), (GRADIENT, 1)]
    assert below.keys == [(GRADIENT, 0)]
