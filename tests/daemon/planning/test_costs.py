"""What was measured is kept, shared by equal cards, and predictions are held against it."""

import pytest
from support.stores import Stores, plain_spec

from slidepack.daemon.planner.cost import Sample, StepCost
from slidepack.daemon.store.costs import CostBook, Promise

CARD, MODEL = "NVIDIA GeForce RTX 3090", "hash|bf16|plain"
PRIOR = StepCost(floor_seconds=0.1, token_seconds=1e-4, fixed_tokens=100.0)
TRUTH = PRIOR.scaled(3.0)


def _sample(tokens: int, lanes: int = 1, cost: StepCost = TRUTH) -> Sample:
    return Sample(tokens=tokens, lanes=lanes, seconds=cost.seconds(tokens, lanes))


def test_without_a_sample_nothing_is_known(stores: Stores) -> None:
    book = CostBook(stores.database)
    book.record_step("another card", MODEL, _sample(100), 1.0)
    assert book.learned(CARD, MODEL, PRIOR) is None
    assert book.start_seconds(CARD, MODEL) is None


def test_steps_of_one_card_predict_those_of_an_equal_one(stores: Stores) -> None:
    book = CostBook(stores.database)
    for tokens in (50, 200, 1000, 5000, 20000):
        book.record_step(CARD, MODEL, _sample(tokens), 1.0)
    fit = CostBook(stores.database).learned(CARD, MODEL, PRIOR)
    assert fit is not None
    assert fit.samples == 5
    assert fit.cost.seconds(10_000, 1) == pytest.approx(TRUTH.seconds(10_000, 1), rel=0.05)
    assert fit.median_error < 0.02


def test_a_new_sample_changes_what_was_learned(stores: Stores) -> None:
    book = CostBook(stores.database)
    book.record_step(CARD, MODEL, _sample(1000), 1.0)
    slow = book.learned(CARD, MODEL, PRIOR)
    for _ in range(3):
        book.record_step(CARD, MODEL, _sample(1000, cost=PRIOR), 2.0)
    fast = book.learned(CARD, MODEL, PRIOR)
    assert slow is not None
    assert fast is not None
    assert fast.cost.seconds(1000, 1) < slow.cost.seconds(1000, 1) / 2


def test_a_long_job_does_not_push_out_what_others_showed(stores: Stores) -> None:
    book = CostBook(stores.database)
    with stores.database.transaction():
        for number in range(100):
            book.record_step(CARD, MODEL, _sample(1000 + number, lanes=8), 1.0)
        book.record_step(CARD, MODEL, _sample(64), 2.0)
        for number in range(100):
            book.record_step(CARD, MODEL, _sample(1000 + number, lanes=8), 3.0)
    rows = stores.database.query("SELECT lanes, at FROM step_samples")
    assert [row["lanes"] for row in rows].count(1) == 1
    assert len(rows) == 41
    assert {row["at"] for row in rows if row["lanes"] == 8} == {3.0}


def test_old_steps_are_dropped_however_many_lanes_there_were(stores: Stores) -> None:
    book = CostBook(stores.database)
    with stores.database.transaction():
        for number in range(600):
            book.record_step(CARD, MODEL, _sample(1000, lanes=1 + number % 60), float(number))
        book.record_step("cpu", MODEL, _sample(1000), 1.0)
    rows = stores.database.query("SELECT at FROM step_samples WHERE device = ?", CARD)
    assert len(rows) == 400
    assert min(row["at"] for row in rows) == 200.0


def test_a_start_is_the_median_of_the_last_ones(stores: Stores) -> None:
    book = CostBook(stores.database)
    for seconds in (500.0, 500.0, 500.0, 10.0, 12.0, 90.0, 11.0, 13.0):
        book.record_start(CARD, MODEL, seconds, 1.0)
    assert book.start_seconds(CARD, MODEL) == 12.0


def _promise(job_id: int, end: float, seat: str = "cuda:0") -> Promise:
    return Promise(job_id=job_id, device=CARD, model=MODEL, seat=seat, end=end)


def _completed(stores: Stores, attempts: int = 1, at: float = 200.0) -> int:
    job = stores.jobs.add(plain_spec(), 0.0)
    for number in range(1, attempts + 1):
        stores.attempts.add(job.id, number, "-", f"{job.id}-{number}", 1.0, device="cuda:0")
    stores.jobs.move(job.id, "starting", "-", 1.0)
    stores.jobs.move(job.id, "completed", "-", at)
    return job.id


def test_an_error_is_relative_to_the_time_that_was_left_in_truth(stores: Stores) -> None:
    book = CostBook(stores.database)
    late, soon = _completed(stores, at=200.0), _completed(stores, at=200.0)
    book.promise([_promise(late, 180.0), _promise(soon, 240.0)], 100.0)
    assert book.accuracy() == []
    book.settle_ended()
    (found,) = book.accuracy()
    assert (found.device, found.model, found.jobs) == (CARD, MODEL, 2)
    assert found.median_error == pytest.approx(0.3)
    assert found.worst_error == pytest.approx(0.4)
    assert book.accuracy(device="cpu") == []
    assert book.accuracy(model=MODEL) == [found]


def test_the_first_promise_stands(stores: Stores) -> None:
    book = CostBook(stores.database)
    job = _completed(stores, at=200.0)
    book.promise([_promise(job, 150.0)], 100.0)
    book.promise([_promise(job, 200.0)], 190.0)
    book.settle_ended()
    book.settle(job, 999.0, undisturbed=True)
    assert book.accuracy()[0].worst_error == pytest.approx(0.5)


def test_a_job_that_was_disturbed_says_nothing(stores: Stores) -> None:
    book = CostBook(stores.database)
    twice, cancelled = _completed(stores, attempts=2), stores.jobs.add(plain_spec(), 0.0).id
    stores.jobs.move(cancelled, "cancelled", "-", 150.0)
    deleted = _completed(stores)
    book.promise([_promise(job, 190.0) for job in (twice, cancelled, deleted)], 100.0)
    stores.jobs.remove(deleted)
    book.settle_ended()
    assert book.accuracy() == []
    assert book.promised() == frozenset()


@pytest.mark.parametrize(("device", "counts"), [("cuda:0", False), ("cuda:1", True)])
def test_a_job_beside_which_a_later_one_ran_was_disturbed(
    stores: Stores, device: str, counts: bool
) -> None:
    book = CostBook(stores.database)
    job = _completed(stores, at=200.0)
    book.promise([_promise(job, 190.0)], 100.0)
    other = stores.jobs.add(plain_spec(), 120.0)
    stores.attempts.add(other.id, 1, "-", "other", 130.0, device=device)
    book.settle_ended()
    assert bool(book.accuracy()) is counts


def test_a_promise_of_a_job_that_runs_stays_open(stores: Stores) -> None:
    book = CostBook(stores.database)
    job = stores.jobs.add(plain_spec(), 0.0)
    stores.jobs.move(job.id, "starting", "-", 1.0)
    book.promise([_promise(job.id, 190.0)], 100.0)
    book.settle_ended()
    assert book.promised() == {job.id}
