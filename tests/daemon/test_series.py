"""Thinned-out series against a count by hand: no extreme is lost, both ends and gaps are kept."""

import itertools
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.stores import Stores, open_stores, plain_spec

from slidepack.daemon.store.series import METRICS, Series, SeriesStore
from slidepack.engine.contract.events import Progress
from slidepack.web.results import thin_evaluations

_LR = 1e-3


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return open_stores(tmp_path)


def _run(stores: Stores, losses: dict[int, float | None], at: float = 0.0) -> int:
    """Store a run with these losses by step; norms and speeds follow from the step."""
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    _go_on(stores, job_id, 1, losses, at)
    return job_id


def _go_on(
    stores: Stores, job_id: int, number: int, losses: dict[int, float | None], at: float
) -> None:
    attempt = stores.add_attempt(job_id, number)
    events = [
        Progress(
            at=at + step,
            step=step,
            total_steps=10_000,
            loss=loss,
            grad_norm=_norm(step),
            lr=_LR * step,
            tokens=1,
            supervised_tokens=1,
            tokens_per_second=_speed(step),
            eta_seconds=1.0,
        )
        for step, loss in losses.items()
    ]
    stores.runlog.ingest(attempt, events, 1)


def _norm(step: int) -> float:
    return (step * 7919 % 101) / 10


def _speed(step: int) -> float:
    return 100.0 + step * 31 % 57


def _covered(series: Series, begin: int) -> list[list[int]]:
    """Return the steps of each point; steps follow one another without a gap."""
    starts = itertools.accumulate(series.count, initial=begin)
    return [
        list(range(start, start + count))
        for start, count in zip(starts, series.count, strict=False)
    ]


def _check(series: Series, losses: dict[int, float | None], begin: int, end: int) -> None:
    covered = _covered(series, begin)
    assert [step for steps in covered for step in steps] == list(range(begin, end + 1))
    assert (series.step[0], series.step[-1]) == (begin, end)
    assert (series.count[0], series.count[-1]) == (1, 1)
    assert series.step == sorted(set(series.step))
    values: dict[str, Mapping[int, float | None]] = {
        "loss": losses,
        "grad_norm": {step: _norm(step) for step in losses},
        "tokens_per_second": {step: _speed(step) for step in losses},
    }
    assert set(values) == set(METRICS)
    for place, steps in enumerate(covered):
        assert steps[0] <= series.step[place] <= steps[-1]
        assert series.no_loss[place] == sum(losses[step] is None for step in steps)
        assert series.lr[place] == pytest.approx(_LR * sum(steps) / len(steps))
        for name, by_step in values.items():
            band = getattr(series, name)
            found = [value for step in steps if (value := by_step[step]) is not None]
            if found:
                assert (band.low[place], band.high[place]) == (min(found), max(found))
                assert band.mean[place] == pytest.approx(sum(found) / len(found))
            else:
                assert (band.low[place], band.high[place], band.mean[place]) == (None,) * 3


@pytest.mark.parametrize("seed", range(8))
def test_every_point_has_the_extremes_of_its_steps(stores: Stores, seed: int) -> None:
    dice = random.Random(seed)
    length = dice.choice([1, 2, 3, 4, 5, 50, 333, 1000])
    losses = {
        step: None if dice.random() < 0.1 else dice.gauss(2.0, 1.0) for step in range(1, length + 1)
    }
    job_id = _run(stores, losses)
    store = SeriesStore(stores.database)
    for _ in range(6):
        points = dice.choice([3, 4, 7, 60, 1000])
        begin = dice.randint(1, length)
        end = dice.randint(begin, length)
        series = store.read(job_id, begin, end, points)
        assert len(series.step) <= points
        assert (series.first, series.last, series.last_at) == (1, length, length)
        assert (series.steps_per_point == 1) == (end - begin + 1 <= points)
        _check(series, losses, begin, end)


def test_a_single_spike_and_a_stretch_without_numbers_are_seen_from_afar(stores: Stores) -> None:
    losses: dict[int, float | None] = dict.fromkeys(range(1, 1001), 1.0)
    losses[637] = 900.0
    losses |= dict.fromkeys(range(200, 300), None)
    series = SeriesStore(stores.database).read(_run(stores, losses), None, None, 50)
    high = [value for value in series.loss.high if value is not None]
    assert max(high) == 900.0
    assert None in series.loss.mean
    assert sum(series.no_loss) == 100


def test_a_closer_look_is_finer_and_what_is_not_there_is_empty(stores: Stores) -> None:
    job_id = _run(stores, {step: 1.0 / step for step in range(1, 501)})
    other = _run(stores, {1: 9.0})
    store = SeriesStore(stores.database)
    assert store.read(job_id, None, None, 100).steps_per_point == 6
    close = store.read(job_id, 101, 150, 100)
    assert (close.steps_per_point, close.step) == (1, list(range(101, 151)))
    assert close.loss.low == close.loss.mean == close.loss.high
    for begin, end in ((600, 700), (30, 20)):
        nothing = store.read(job_id, begin, end, 100)
        assert (nothing.step, nothing.first, nothing.last) == ([], 1, 500)
    assert store.read(other, None, None, 100).loss.mean == [9.0]
    empty = store.read(stores.jobs.add(plain_spec(), 0.0).id, None, None, 100)
    assert (empty.step, empty.first, empty.last, empty.last_at) == ([], 0, 0, 0.0)


def test_only_the_newest_attempts_own_steps_tell_how_fast_it_is(stores: Stores) -> None:
    job_id = _run(stores, dict.fromkeys(range(1, 21), 1.0))
    store = SeriesStore(stores.database)
    assert store.newest_times(job_id, 3) == [(18, 18.0), (19, 19.0), (20, 20.0)]
    stores.attempts.end(stores.attempt(job_id), "interrupted", 1, 30.0)
    _go_on(stores, job_id, 2, dict.fromkeys(range(11, 14), 1.0), at=100.0)
    assert store.newest_times(job_id, 9) == [(11, 111.0), (12, 112.0), (13, 113.0)]


@pytest.mark.parametrize("count", [3, 20, 21, 22, 500])
def test_evaluations_keep_their_ends_and_extremes(count: int) -> None:
    dice = random.Random(count)
    rows = [
        {"step": step, "loss": None if dice.random() < 0.2 else dice.random()}
        for step in range(count)
    ]
    thin = thin_evaluations(rows, 20)
    known = [row["loss"] for row in rows if row["loss"] is not None]
    kept = [row["loss"] for row in thin if row["loss"] is not None]
    assert len(thin) <= 20
    assert (thin[0], thin[-1]) == (rows[0], rows[-1])
    assert (min(kept), max(kept)) == (min(known), max(known))
    assert [row["step"] for row in thin] == sorted({row["step"] for row in thin})
