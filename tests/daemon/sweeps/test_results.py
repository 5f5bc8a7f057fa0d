"""What a sweep found: the order of its members, and the best of them."""

import pytest
from support.reports import made_report
from support.sweep_shop import SweepShop

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import Judged
from slidepack.engine.contract.sweep import Halving


def test_members_are_ordered_by_the_selection_loss_of_their_adapters(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(grid={"rank": [1, 2, 3, 4, 5, 6]})
    one, two, three, four, five, six = queued.jobs
    # The base is measured first, and on the same rows: that is nobody's merit.
    sweep_shop.measure(one, 0.1, 2.0, 1.8, test=0.5)
    sweep_shop.measure(two, 0.1, 1.5, 1.9, test=3.0)
    sweep_shop.measure(three, 0.1, None, 1.7)
    sweep_shop.measure(four, 0.1)
    sweep_shop.measure(five, 0.1, 0.5, None)
    for job_id in (one, two):
        sweep_shop.end(job_id)
    sweep_shop.end(five, "failed")
    table = sweep_shop.sweeps.show(queued.sweep_id)
    assert [row.job_id for row in table.members] == [three, one, two, four, six, five]
    assert [row.loss for row in table.members] == [1.7, 1.8, 1.9, None, None, 0.5]
    assert [row.lowest_loss for row in table.members[:3]] == [1.7, 1.8, 1.5]
    assert (table.members[1].loss_step, table.members[1].best) == (2, True)
    assert sum(row.best for row in table.members) == 1


def test_the_best_is_told_with_its_test_loss_and_not_chosen_by_it(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(name="first", grid={"rank": [1, 2, 3]})
    one, two, three = queued.jobs
    sweep_shop.measure(one, 9.0, 2.0, test=0.1)
    sweep_shop.measure(two, 9.0, 1.0, 1.1, test=5.0)
    # It is ahead, and nothing of it can be used yet.
    sweep_shop.measure(three, 9.0, 0.5)
    with pytest.raises(SlidepackError, match="RUN-NO-RESULT: Sweep 1 has no best member yet"):
        sweep_shop.sweeps.best(queued.sweep_id)
    for job_id in (one, two):
        sweep_shop.end(job_id)
    best = sweep_shop.sweeps.best(queued.sweep_id)
    assert (best.job_id, best.settings) == (two, {"rank": 2})
    assert (best.loss, best.lowest_loss, best.test_loss) == (1.1, 1.0, 5.0)
    assert best.adapter == str(sweep_shop.paths.attempt(two, 1) / "result" / "adapter")
    assert sweep_shop.sweeps.show(queued.sweep_id).best == best
    (listed,) = sweep_shop.sweeps.list_sweeps()
    assert (listed.best, listed.members) == (best, 3)
    assert listed.states == {"completed": 2, "queued": 1}


def test_only_settings_that_differ_are_shown(sweep_shop: SweepShop) -> None:
    fixed = {"rank": 4, "alpha_times_rank": 2}
    queued = sweep_shop.add(fixed=fixed, grid={"lr": [1e-4, 2e-4], "dropout": [0.0]})
    table = sweep_shop.sweeps.show(queued.sweep_id)
    assert table.differ == ("lr",)
    assert [row.settings for row in table.members] == [{"lr": 1e-4}, {"lr": 2e-4}]
    follows = sweep_shop.add(fixed={"alpha_times_rank": 2}, grid={"rank": [4, 8]})
    assert sweep_shop.sweeps.show(follows.sweep_id).differ == ("rank", "alpha")


def test_where_a_member_was_stopped_is_shown(sweep_shop: SweepShop) -> None:
    halving = Halving(first_samples=8, eta=2)
    queued = sweep_shop.add(grid={"rank": [1, 2]}, halving=halving)
    ahead, behind = queued.jobs
    assert sweep_shop.judge(ahead, 1.0)
    assert not sweep_shop.judge(behind, 2.0)
    rows = {row.job_id: row.stopped_rung for row in sweep_shop.sweeps.show(1).members}
    assert rows == {ahead: 0, behind: 1}
    (sweep_shop.folder_of(1) / "rungs.json").write_text("{")
    with pytest.raises(SlidepackError, match="RUN-FOLDER-BROKEN"):
        sweep_shop.sweeps.show(1)
    # The list and the best do without it.
    assert len(sweep_shop.sweeps.list_sweeps()) == 1


def test_all_attempts_at_a_member_count(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(grid={"rank": [1, 2]})
    job_id, idle = queued.jobs
    attempts = sweep_shop.stores.attempts
    attempts.add(job_id, 1, "/1", "n1", 100.0)
    attempts.end(sweep_shop.stores.attempt(job_id), "yielded", 0, 130.0)
    attempts.add(job_id, 2, "/2", "n2", 500.0)
    attempts.end(sweep_shop.stores.attempt(job_id, 2), "completed", 0, 512.0)
    rows = {row.job_id: row.seconds for row in sweep_shop.sweeps.show(queued.sweep_id).members}
    assert rows == {job_id: 42.0, idle: 0.0}


def test_a_sweep_that_is_not_there_is_said_so(sweep_shop: SweepShop) -> None:
    for read in (sweep_shop.sweeps.show, sweep_shop.sweeps.best):
        with pytest.raises(SlidepackError, match="RUN-NOT-FOUND: There is no sweep 7"):
            read(7)


def _judge(sweep_shop: SweepShop, job_id: int, right: int, *, step: int = 2) -> None:
    event = Judged(at=1.0, report=made_report(step, right))
    sweep_shop.stores.runlog.ingest(sweep_shop.stores.attempt(job_id), [event], 1)


def test_test_rows_rank_members_to_be_reported_and_choose_none(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(grid={"rank": [1, 2, 3, 4]})
    one, two, three, four = queued.jobs
    sweep_shop.measure(one, 9.0, 1.0, 1.0, test=5.0)
    sweep_shop.measure(two, 9.0, 2.0, 2.0, test=3.0)
    sweep_shop.measure(three, 9.0, 3.0, 3.0, test=4.0)
    sweep_shop.measure(four, 9.0, 0.5)
    for job_id, right in ((one, 3), (two, 6), (three, 9)):
        _judge(sweep_shop, job_id, right)
        sweep_shop.end(job_id)
    # It has measured its base only.
    _judge(sweep_shop, four, 0, step=0)
    by_loss = sweep_shop.sweeps.show(queued.sweep_id, "test")
    assert [row.job_id for row in by_loss.members] == [two, three, one, four]
    assert [row.test_loss for row in by_loss.members] == [3.0, 4.0, 5.0, None]
    by_score = sweep_shop.sweeps.show(queued.sweep_id, "test-score")
    assert [row.job_id for row in by_score.members] == [three, two, one, four]
    scores = [row.test_score for row in by_score.members]
    assert [score and score.value for score in scores] == [0.9, 0.6, 0.3, None]
    assert {score.kind for score in scores if score} == {"exact_match_normalised"}
    plain = sweep_shop.sweeps.show(queued.sweep_id)
    assert by_loss.best == by_score.best == plain.best
    assert by_loss.best is not None
    assert by_loss.best.job_id == one
    for table in (by_loss, by_score):
        assert [row.job_id for row in table.members if row.best] == [one]
        assert "looked at 3 times" in table.note
        assert "for reporting, not for choosing" in table.note
    # Nobody is led to choose by them.
    assert {(row.test_loss, row.test_score) for row in plain.members} == {(None, None)}
    assert plain.note == ""


def test_selection_rows_are_no_test_rows(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(grid={"rank": [1, 2]})
    for job_id in queued.jobs:
        sweep_shop.measure(job_id, 9.0, 1.0)
        event = Judged(at=1.0, report=made_report(2, 5, split="selection"))
        sweep_shop.stores.runlog.ingest(sweep_shop.stores.attempt(job_id), [event], 1)
    table = sweep_shop.sweeps.show(queued.sweep_id, "test-score")
    assert [row.test_score for row in table.members] == [None, None]
    assert table.note.startswith("No member was measured on test rows")
