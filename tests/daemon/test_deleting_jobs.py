"""What is left of an ended job in the tables, and of a deleted one anywhere."""

import os

import pytest
from support.job_folders import Shop

from slidepack.daemon.store.retention import RetentionStore
from slidepack.engine.contract.events import AnyEvent, Evaluated, Finished, Progress, Warned


def _step(step: int) -> Progress:
    return Progress(
        at=float(step),
        step=step,
        total_steps=9,
        loss=1.0,
        grad_norm=1.0,
        lr=1e-3,
        tokens=1,
        supervised_tokens=1,
        tokens_per_second=1.0,
        eta_seconds=1.0,
    )


def _finished() -> Finished:
    return Finished(
        at=1.0,
        steps=1,
        result="/there",
        eval_loss_before=None,
        eval_loss_after=None,
        seconds=1.0,
        tokens_per_second=1.0,
        peak_host_bytes=1,
        peak_device_bytes=0,
    )


def _report_everything(shop: Shop, job_id: int, steps: int) -> None:
    events: list[AnyEvent] = [
        Warned(at=1.0, code="RUN-HIGH-LOSS", message="high"),
        *(_step(step) for step in range(1, steps + 1)),
        Evaluated(at=1.0, step=1, split="selection", loss=2.5, rows=3, supervised_tokens=9),
        _finished(),
    ]
    shop.stores.runlog.ingest(shop.stores.attempt(job_id), events, 1)


def _kinds(shop: Shop, job_id: int) -> list[str]:
    rows = shop.stores.runlog.events_after(0, job_id, limit=100_000)
    return [str(row["type"]) for row in rows]


def test_events_of_steps_go_after_a_while_and_the_chart_stays(shop: Shop) -> None:
    ended, live = shop.job([[]], "completed"), shop.job([[]])
    for job_id in (ended, live):
        _report_everything(shop, job_id, steps=12_000)
        shop.retention.after_end(job_id)
    chart = shop.stores.runlog.progress(ended)
    shop.retention.work()
    assert len(_kinds(shop, ended)) == 12_003, "a page may still ask for what it missed"
    shop.clock.now += 601
    counts = []
    for _ in range(4):
        shop.retention.work()
        counts.append(len(_kinds(shop, ended)))
    assert counts == [7_003, 2_003, 3, 3], "in slices"
    assert _kinds(shop, ended) == ["warning", "eval", "finished"]
    assert shop.stores.runlog.progress(ended) == chart
    assert len(chart) == 12_000
    assert isinstance(shop.stores.runlog.ending(ended, 1), Finished)
    assert len(_kinds(shop, live)) == 12_003


def test_events_of_jobs_that_ended_before_a_start_go_too(shop: Shop) -> None:
    jobs = [shop.job([[]], "failed") for _ in range(3)]
    for job_id in jobs:
        _report_everything(shop, job_id, steps=10)
    shop.restart()
    for _ in range(len(jobs)):
        shop.retention.work()
    assert [_kinds(shop, job_id) for job_id in jobs] == [["warning", "eval", "finished"]] * 3


def test_a_deleted_job_leaves_nothing_and_no_other_job_loses_anything(shop: Shop) -> None:
    deleted, other = (shop.job([[True], [True]], "failed") for _ in range(2))
    for job_id in (deleted, other):
        _report_everything(shop, job_id, steps=10)
    with shop.stores.database.transaction():
        shop.stores.runlog.forget(deleted)
        shop.retention.remove_job_folder(deleted)
    assert (shop.paths.jobs / str(deleted)).is_dir(), "not within the transaction"
    shop.retention.work()
    assert os.listdir(shop.paths.jobs) == [str(other)]
    for table in ("events", "progress", "evaluations", "samples", "warnings"):
        rows = shop.stores.database.query(f"SELECT DISTINCT job_id FROM {table}")
        assert [row["job_id"] for row in rows] in ([other], []), table
    assert len(_kinds(shop, other)) == 13
    assert shop.left(other) == ["1/1", "2/1"]


def test_a_deletion_that_is_undone_deletes_no_folder(shop: Shop) -> None:
    job_id = shop.job([[True]], "failed")
    _report_everything(shop, job_id, steps=10)
    with pytest.raises(RuntimeError), shop.stores.database.transaction():
        shop.stores.runlog.forget(job_id)
        shop.retention.remove_job_folder(job_id)
        raise RuntimeError
    shop.retention.work()
    assert shop.left(job_id) == ["1/1"]
    assert len(_kinds(shop, job_id)) == 13


def test_a_deletion_that_a_kill_cut_short_is_finished_by_the_next_daemon(shop: Shop) -> None:
    before, during = (shop.job([[True]], "failed") for _ in range(2))
    for job_id in (before, during):
        shop.retention.remove_job_folder(job_id)
    (shop.paths.jobs / str(during)).rename(shop.paths.jobs / f".{during}.gone")
    shop.restart()
    shop.retention.work()
    assert os.listdir(shop.paths.jobs) == []
    assert RetentionStore(shop.stores.database).leftovers() == []


def test_a_deleted_folder_stays_while_another_job_goes_on_from_it(shop: Shop) -> None:
    first = shop.job([[True]], "failed")
    adopter = shop.job([[]], adopts=first)
    shop.retention.remove_job_folder(first)
    shop.retention.work()
    assert shop.left(first) == ["1/1"]
    shop.set(adopter, "completed")
    shop.retention.work()
    assert not (shop.paths.jobs / str(first)).exists()
