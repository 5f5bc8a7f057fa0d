"""The state machine: what is allowed happens, what is not is refused, nothing is lost."""

import multiprocessing
import random
import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest
from support.stores import Stores, add_jobs, claim_jobs, open_stores, plain_spec
from support.waiting import PATIENCE

from slidepack.daemon.states import JOB_STATES, LIVE, TERMINAL, TRANSITIONS, JobState
from slidepack.engine.contract.errors import SlidepackError

_PAIRS = [(a, b) for a in JOB_STATES for b in JOB_STATES]


def test_the_table_is_whole_and_nothing_leaves_a_terminal_state() -> None:
    assert set(TRANSITIONS) == set(JOB_STATES)
    assert all(not TRANSITIONS[state] for state in TERMINAL)
    # Any job that has not ended may be cancelled, and may end in whatever way its worker does.
    assert all("cancelled" in TRANSITIONS[s] for s in JOB_STATES if s not in TERMINAL)
    assert all({"completed", "failed", "queued", "paused"} <= TRANSITIONS[s] for s in LIVE)
    reachable: set[JobState] = {"draft"}
    while grown := {b for a in reachable for b in TRANSITIONS[a]} - reachable:
        reachable |= grown
    assert reachable == set(JOB_STATES)


def test_every_pair_is_allowed_or_refused_as_the_table_says(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    for before, after in _PAIRS:
        stores.force(job_id, before)
        history = len(stores.jobs.transitions(job_id))
        if after in TRANSITIONS[before]:
            stores.jobs.move(job_id, after, "a test", 1.0)
            assert stores.jobs.get(job_id).state == after
            last = stores.jobs.transitions(job_id)[-1]
            assert (last["from_state"], last["to_state"]) == (before, after)
            continue
        with pytest.raises(SlidepackError) as refusal:
            stores.jobs.move(job_id, after, "a test", 1.0)
        assert refusal.value.report.code == "RUN-STATE"
        assert stores.jobs.get(job_id).state == before
        assert len(stores.jobs.transitions(job_id)) == history


@pytest.mark.parametrize("seed", range(5))
def test_random_walks_keep_the_books(stores: Stores, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(8):
        job_id = stores.jobs.add(plain_spec(), 0.0).id
        state: JobState = "queued"
        for at in range(1, 30):
            target = rng.choice(JOB_STATES)
            if rng.random() < 0.3 and state in LIVE:
                stores.jobs.want(job_id, rng.choice(("pause", "yield", "cancel")), at)
            if target in TRANSITIONS[state]:
                stores.jobs.move(job_id, target, "walk", at)
                state = target
            else:
                with pytest.raises(SlidepackError):
                    stores.jobs.move(job_id, target, "walk", at)
            job = stores.jobs.get(job_id)
            assert job.state == state
            assert job.terminal == (job.ended_at is not None) == (state in TERMINAL)
            assert state in LIVE or job.wanted is None
        chain = stores.jobs.transitions(job_id)
        assert chain[0]["from_state"] == "draft"
        assert chain[-1]["to_state"] == state
        assert all(a["to_state"] == b["from_state"] for a, b in pairwise(chain))


def test_asking_again_does_not_give_a_worker_more_time(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    stores.jobs.move(job_id, "starting", "", 1.0)
    stores.jobs.want(job_id, "pause", 2.0)
    stores.jobs.want(job_id, "pause", 3.0)
    assert stores.jobs.get(job_id).wanted_at == 2.0
    stores.jobs.want(job_id, "cancel", 4.0)
    stores.jobs.want(job_id, "pause", 5.0)
    job = stores.jobs.get(job_id)
    assert (job.wanted, job.wanted_at) == ("cancel", 4.0)


def test_a_failure_undoes_the_whole_transaction(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    with pytest.raises(RuntimeError), stores.database.transaction():
        stores.jobs.move(job_id, "starting", "", 1.0)
        with stores.database.transaction():
            stores.jobs.move(job_id, "running", "", 1.0)
        raise RuntimeError
    assert stores.jobs.get(job_id).state == "queued"
    assert len(stores.jobs.transitions(job_id)) == 1


def test_processes_at_once_lose_nothing_and_claim_nothing_twice(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    stores = open_stores(tmp_path)
    adders = [context.Process(target=add_jobs, args=(tmp_path, 20)) for _ in range(2)]
    for adder in adders:
        adder.start()
    for adder in adders:
        adder.join()
    ids = [job.id for job in stores.jobs.list_jobs()]
    assert len(ids) == 40
    positions = stores.database.query("SELECT DISTINCT position FROM jobs")
    assert len(positions) == 40, "two jobs stand at one place of the queue"
    out = context.Queue()
    claimers = [context.Process(target=claim_jobs, args=(tmp_path, out)) for _ in range(3)]
    for claimer in claimers:
        claimer.start()
    won = [job_id for _ in claimers for job_id in out.get(timeout=PATIENCE)]
    for claimer in claimers:
        claimer.join()
    assert sorted(won) == sorted(ids)
    assert all(len(stores.jobs.transitions(job_id)) == 2 for job_id in ids)


def test_a_writer_waits_for_another_and_a_reader_does_not(stores: Stores, tmp_path: Path) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    other = sqlite3.connect(tmp_path / "slidepack.db", timeout=0, isolation_level=None)
    with stores.database.transaction():
        stores.jobs.move(job_id, "starting", "", 1.0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        assert other.execute("SELECT state FROM jobs").fetchone() == ("queued",)
    assert other.execute("SELECT state FROM jobs").fetchone() == ("starting",)
    other.close()


def test_numbers_that_sqlite_cannot_hold_find_nothing(stores: Stores) -> None:
    for number in (2**63, 10**30, -(10**30)):
        with pytest.raises(SlidepackError) as refusal:
            stores.jobs.get(number)
        assert refusal.value.report.code == "RUN-NOT-FOUND"


def test_a_file_that_is_no_database_is_one_coded_error(tmp_path: Path) -> None:
    (tmp_path / "slidepack.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(SlidepackError) as refusal:
        open_stores(tmp_path)
    assert refusal.value.report.code == "DISK-UNWRITABLE"
    assert "not a database" in refusal.value.report.why
