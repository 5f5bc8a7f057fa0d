"""The order of rows: complete, repeatable, and the same after a resume."""

import time
from collections import Counter
from typing import Any

import pytest

from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef
from slidepack.engine.worker.order import RowOrder, rows_of_step, steps_per_epoch, total_steps


def _spec(**changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "name": "n",
        "base": ModelRef(model_id="m", path="m", content_hash="-"),
        "dataset": DatasetRef(dataset_id="d", path="d", content_hash="-"),
        "method": LoraMethod(),
        "batch_size": 4,
        "epochs": 2.0,
        "seed": 5,
    }
    return JobSpec(**(values | changes))


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 41])
def test_every_row_comes_once_an_epoch(rows: int) -> None:
    spec = _spec()
    per_epoch = steps_per_epoch(spec, rows)
    for epoch in range(3):
        batches = [
            rows_of_step(spec, range(rows), epoch * per_epoch + step) for step in range(per_epoch)
        ]
        assert Counter(row for batch in batches for row in batch) == dict.fromkeys(range(rows), 1)
        assert all(len(batch) == 4 for batch in batches[:-1])
        assert len(batches[-1]) == (rows % 4 or 4)


def test_a_step_hangs_on_nothing_before_it() -> None:
    spec = _spec()
    forward = [rows_of_step(spec, range(30), step) for step in range(40)]
    backward = [rows_of_step(spec, range(30), step) for step in reversed(range(40))]
    assert forward == backward[::-1]


def test_epochs_and_seeds_differ() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        spec = _spec(seed=seed, batch_size=64)
        return rows_of_step(spec, range(64), number)

    assert epoch(1, 0) != epoch(1, 1)
    assert epoch(1, 0) != epoch(2, 0)


def test_the_order_is_the_same_for_ever() -> None:
    # A checkpoint of an earlier version goes on with this order.
    assert rows_of_step(_spec(batch_size=8), range(8), 0) == [3, 4, 0, 2, 1, 6, 5, 7]


@pytest.mark.parametrize(
    ("epochs", "rows", "steps"),
    [(1.0, 41, 11), (2.0, 41, 22), (0.5, 41, 6), (1.1, 40, 11), (0.001, 8, 1), (0.1, 120, 3)],
)
def test_epochs_make_steps(epochs: float, rows: int, steps: int) -> None:
    assert total_steps(_spec(epochs=epochs), rows) == steps


def test_steps_are_taken_as_they_are() -> None:
    assert total_steps(_spec(epochs=0.0, steps=7), 1000) == 7


def test_many_rows_are_not_shuffled_at_every_step() -> None:
    orders = [RowOrder(_spec(seed=seed)) for seed in range(8)]
    begun = time.process_time()
    # Lanes of a pack take turns, and each asks for its next step too.
    for step in range(100):
        for order in orders:
            order.rows_of_step(range(100_000), step)
            order.rows_of_step(range(100_000), step + 1)
    assert time.process_time() - begun < 8.0


def test_an_order_that_is_kept_is_the_one_that_is_made_anew() -> None:
    spec = _spec(batch_size=3)
    order, rows = RowOrder(spec), range(10)
    # Back and forth over three epochs, as a run does that prepares a step ahead.
    for step in (0, 1, 4, 3, 4, 8, 7, 8, 0):
        assert order.rows_of_step(rows, step) == rows_of_step(spec, rows, step)
