"""The queue's order: priorities, moves, dependencies, and what a retry means for them."""

import random

import pytest
from support.stores import Stores, plain_spec

from slidepack.daemon.store.queue_order import place_jobs
from slidepack.daemon.store.timing import JobTiming
from slidepack.daemon.supervisor.choosing import dependence
from slidepack.engine.contract.errors import SlidepackError


def _add(stores: Stores, **when: object) -> int:
    return stores.jobs.add(plain_spec(), 0.0, JobTiming(**when)).id  # type: ignore[arg-type]  # the test's own values


def _order(stores: Stores) -> list[int]:
    return [job.id for job in stores.jobs.queued()]


def test_priority_comes_before_the_order_of_arrival(stores: Stores) -> None:
    first, urgent, late, second = (
        _add(stores),
        _add(stores, priority=5),
        _add(stores, priority=-1),
        _add(stores),
    )
    assert _order(stores) == [urgent, first, second, late]
    assert [job.id for job in stores.jobs.list_jobs()] == _order(stores)


def test_moving_keeps_all_others_in_their_order(stores: Stores) -> None:
    rng = random.Random(4)
    ids = [_add(stores) for _ in range(8)]
    expected = list(ids)
    for _ in range(60):
        moved = rng.choice(ids)
        before = rng.choice([None, *(job for job in ids if job != moved)])
        stores.jobs.place(moved, before)
        expected.remove(moved)
        expected.insert(len(expected) if before is None else expected.index(before), moved)
        assert _order(stores) == expected
    assert _order(stores)[-1] != _add(stores), "a new job comes last"
    assert _order(stores)[:-1] == expected


def test_several_jobs_are_moved_as_one(stores: Stores) -> None:
    rng = random.Random(7)
    ids = [_add(stores) for _ in range(12)]
    expected = list(ids)
    for _ in range(80):
        moved = rng.sample(ids, rng.randint(1, 5))
        before = rng.choice([None, *(job for job in ids if job not in moved)])
        place_jobs(stores.database, moved, before)
        expected = [job for job in expected if job not in moved]
        at = len(expected) if before is None else expected.index(before)
        expected[at:at] = moved
        assert _order(stores) == expected


def test_there_is_always_room_between_two_jobs(stores: Stores) -> None:
    first, second, *others = (_add(stores) for _ in range(5))
    urgent = _add(stores, priority=2)
    for turn in range(130):
        # Halving a distance again and again leaves no number between two of them.
        moved = others[turn % 3]
        stores.jobs.place(moved, second)
        order = _order(stores)
        assert order.index(moved) + 1 == order.index(second)
    assert _order(stores)[:2] == [urgent, first]
    stores.jobs.place(urgent, None)
    assert _order(stores)[-1] == urgent


def test_a_move_writes_the_moved_job_alone(stores: Stores) -> None:
    ids = [_add(stores) for _ in range(50)]
    before = stores.database.values("SELECT id, position FROM jobs ORDER BY id")
    stores.jobs.place(ids[40], ids[3])
    after = stores.database.values("SELECT id, position FROM jobs ORDER BY id")
    assert [a[0] for a, b in zip(after, before, strict=True) if a != b] == [ids[40]]


def test_a_moved_job_takes_the_priority_of_its_new_neighbour(stores: Stores) -> None:
    low, high = _add(stores), _add(stores, priority=9)
    stores.jobs.place(low, high)
    assert _order(stores) == [low, high]
    assert stores.jobs.get(low).priority == 9
    stores.jobs.place(low, None)
    assert _order(stores) == [high, low]


def test_a_job_knows_what_it_comes_after(stores: Stores) -> None:
    first, second = _add(stores), _add(stores)
    third = _add(stores, after=(first, second))
    assert stores.jobs.get(third).after == (first, second)
    assert stores.jobs.list_jobs()[2].after == (first, second)
    with pytest.raises(SlidepackError) as refused:
        _add(stores, after=(first, 99))
    assert refused.value.report.code == "RUN-NOT-FOUND"
    assert len(_order(stores)) == 3, "nothing of a refused job is left"


def test_what_earlier_jobs_mean(stores: Stores) -> None:
    earlier = _add(stores)
    job = stores.jobs.get(_add(stores, after=(earlier,)))
    anyway = stores.jobs.get(_add(stores, after=(earlier,), after_failure="run"))
    for state in ("queued", "running", "paused"):
        assert f"waits for job {earlier}" in dependence(job, {earlier: state}).waits
        assert dependence(anyway, {earlier: state}).waits
    assert dependence(job, {earlier: "completed"}) == dependence(anyway, {earlier: "failed"})
    for state, word in (("failed", "failed"), ("cancelled", "was cancelled")):
        broken = dependence(job, {earlier: state})  # type: ignore[dict-item]  # the literals are states
        assert word in broken.broken
        assert not broken.waits


def test_a_thing_that_cannot_be_scheduled_is_refused() -> None:
    for values in (
        {"priority": 101},
        {"not_before": float("nan")},
        {"not_before": -1.0},
        # Milliseconds, as a browser counts them.
        {"not_before": 1.8e12},
        {"not_before": 1e300},
        {"after": (1, 1)},
    ):
        with pytest.raises(ValueError, match=next(iter(values))):
            JobTiming(**values)


def test_what_is_half_done_goes_on_before_what_has_not_begun(stores: Stores) -> None:
    urgent = _add(stores, priority=1)
    first, second, half = _add(stores), _add(stores), _add(stores)
    stores.jobs.place_first(half)
    assert _order(stores) == [urgent, half, first, second]
    stores.jobs.place_first(half)
    assert _order(stores) == [urgent, half, first, second]
    stores.jobs.place_first(urgent)
    assert _order(stores) == [urgent, half, first, second], "alone in its priority"


def test_a_users_wish_is_never_weakened(stores: Stores) -> None:
    strength = ("yield", "pause", "cancel")
    for earlier in strength:
        for later in strength:
            job_id = _add(stores)
            stores.jobs.move(job_id, "starting", "planned", 1.0)
            stores.jobs.want(job_id, earlier, 1.0, "first")
            stores.jobs.want(job_id, later, 2.0, "second")
            job = stores.jobs.get(job_id)
            assert job.wanted == max(earlier, later, key=strength.index)
            changed = strength.index(later) > strength.index(earlier)
            assert (job.wanted_at, job.wanted_why) == (
                (2.0, "second") if changed else (1.0, "first")
            )
