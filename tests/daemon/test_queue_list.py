"""The queue as it is looked at: its pages against the plain definition, filters, very many jobs."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support.stores import Stores, plain_spec

from slidepack.daemon.states import JOB_STATES, LIVE, TERMINAL, JobState
from slidepack.daemon.store.queue_list import WAITING, Entry, QueueFilter, QueueList, QueuePage
from slidepack.daemon.store.timing import JobTiming


@dataclass
class Known:
    """A job as the test made it."""

    id: int
    name: str
    state: JobState
    sweep: int | None
    order: tuple[float, ...]


def _sweep(stores: Stores, name: str) -> int:
    row = stores.database.query(
        "INSERT INTO sweeps (name, request, created_at) VALUES (?, '{}', 0) RETURNING id", name
    )[0]
    return int(row["id"])


def _fill(stores: Stores, rng: random.Random, count: int) -> list[Known]:
    sweeps = [_sweep(stores, f"sweep {number}") for number in range(4)]
    states: tuple[JobState, ...] = ("queued", "paused", "running", "completed", "failed")
    jobs = []
    for number in range(count):
        sweep = rng.choice([None, None, *sweeps])
        state = rng.choice(states)
        priority = rng.choice((0, 0, 3))
        name = f"{rng.choice(('Mails', 'tone 50%', 'tone_x'))} {number}"
        job = stores.jobs.add(
            plain_spec(name), 0.0, JobTiming(priority=priority), sweep_id=sweep
        ).id
        ended_at = rng.randrange(20) if state in TERMINAL else None
        stores.database.execute(
            "UPDATE jobs SET state = ?, ended_at = ? WHERE id = ?", state, ended_at, job
        )
        order = (-priority, number) if ended_at is None else (-ended_at, -job)
        jobs.append(Known(job, name, state, sweep, order))
    return jobs


def _expected(jobs: list[Known], states: set[JobState], text: str) -> list[tuple[int, ...]]:
    """Return the entries as their definition has them."""
    listed = sorted(
        (j for j in jobs if j.state in states and text.casefold() in j.name.casefold()),
        key=lambda job: job.order,
    )
    entries: dict[object, list[int]] = {}
    for job in listed:
        entries.setdefault(job.id if job.sweep is None else ("sweep", job.sweep), []).append(job.id)
    return [tuple(ids) for ids in entries.values()]


def _all_pages(read: Callable[[int, int], QueuePage], limit: int) -> list[Entry]:
    found: list[Entry] = []
    while True:
        page = read(limit, len(found))
        found += page.entries
        if page.next_job is None:
            assert page.total == len(found)
            return found
        assert len(page.entries) == limit
        assert read(limit, len(found)).entries[0].job_ids[0] == page.next_job


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("text", ["", "tone", "50%", "tone_"])
def test_pages_hold_what_the_lists_are_defined_as(stores: Stores, seed: int, text: str) -> None:
    jobs = _fill(stores, random.Random(seed), 70)
    lists = QueueList(stores.database)
    for shown in (JOB_STATES, ("paused", "failed"), ("queued",)):
        wanted = QueueFilter(states=shown, text=text)
        for read, states in ((lists.waiting, set(WAITING)), (lists.ended, set(TERMINAL))):
            found = _all_pages(functools.partial(read, wanted), 7)
            expected = _expected(jobs, states & set(shown), text)
            assert [entry.job_ids for entry in found] == expected
            for entry in found:
                assert (entry.sweep_id is not None) == (len(entry.job_ids) > 1)
        live = [entry.job_ids[0] for entry in lists.live(wanted).entries]
        running = (j for j in jobs if j.state in set(LIVE) & set(shown) and text in j.name)
        assert live == [job.id for job in sorted(running, key=lambda job: job.order)]


def test_a_job_is_found_by_its_number_its_model_and_in_any_case(stores: Stores) -> None:
    ids = [stores.jobs.add(plain_spec(name), 0.0).id for name in ("Alpha", "beta", "100%")]

    def found(text: str) -> list[int]:
        page = QueueList(stores.database).waiting(QueueFilter(text=text), 10)
        return [job for entry in page.entries for job in entry.job_ids]

    assert found(f"#{ids[1]}") == found(str(ids[1])) == [ids[1]]
    assert found("ALPHA") == found("  alp ") == [ids[0]]
    assert found("tiny") == ids, "all are of this model"
    assert found("%") == [ids[2]]
    assert found("_") == found("\\") == found("9" * 30) == []


_SEARCHED = (
    *("Über Straße", "ÜBER STRASSE", "ΟΔΟΣ", "Ёлка", "İzmir", "ﬁne 50%", "a_b", "a\\b", "axb"),
    *("K2", "%", "100 % d'accord", '"quoted"', "日本語"),
)


@pytest.mark.parametrize(
    "text",
    [
        *_SEARCHED,
        *("über", "ÜBER", "STRASSE", "strasse", "ß", "οδος", "οδοσ", "ЁЛ", "i̇z", "fi", "FINE"),
        *("_", "\\", "50%", "k2", "Å", "d'a", '"', "本", "ü", "u"),
    ],
)
def test_a_search_folds_letters_as_python_does(stores: Stores, text: str) -> None:
    ids = {stores.jobs.add(plain_spec(name), 0.0).id: name for name in _SEARCHED}
    stores.database.execute("UPDATE jobs SET model_id = 'Größe' WHERE name = 'K2'")
    lists = QueueList(stores.database)
    for read, state in ((lists.waiting, "queued"), (lists.ended, "completed")):
        ended_at = None if state == "queued" else 1
        stores.database.execute("UPDATE jobs SET state = ?, ended_at = ?", state, ended_at)
        page = read(QueueFilter(text=text), 50)
        found = {ids[job] for entry in page.entries for job in entry.job_ids}
        expected = {name for name in _SEARCHED if text.casefold() in name.casefold()}
        models = {"K2": "größe"} | dict.fromkeys(set(_SEARCHED) - {"K2"}, "tiny")
        expected |= {name for name in _SEARCHED if text.casefold() in models[name].casefold()}
        assert found == expected


def test_an_entry_says_what_is_wanted_of_its_jobs(stores: Stores) -> None:
    sweep = _sweep(stores, "rates")
    jobs = [stores.jobs.add(plain_spec(), 0.0, sweep_id=sweep).id for _ in range(3)]
    stores.jobs.move(jobs[0], "starting", "planned", 1.0)
    stores.jobs.want(jobs[0], "pause", 2.0)
    stores.jobs.move(jobs[2], "paused", "paused", 2.0)
    lists = QueueList(stores.database)
    (live,) = lists.live(QueueFilter()).entries
    assert (live.states, live.sweep_id) == (("pause",), None)
    (waiting,) = lists.waiting(QueueFilter(), 5).entries
    assert waiting == Entry(job_ids=(jobs[1], jobs[2]), states=("queued", "paused"), sweep_id=sweep)


def test_ten_thousand_jobs_are_counted_and_paged(stores: Stores) -> None:
    spec = "x" * 1500
    sweeps = [_sweep(stores, f"sweep {number}") for number in range(50)]
    with stores.database.transaction():
        stores.database.execute(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers "
            "WHERE n < 10000) INSERT INTO jobs (name, state, reason, position, spec, model_id, "
            "dataset_id, created_at, ended_at, sweep_id) SELECT 'job ' || n, "
            "CASE WHEN n % 5 = 0 THEN 'queued' WHEN n % 7 = 0 THEN 'failed' ELSE 'completed' END, "
            "'-', n, ?, 'tiny', 1, n, CASE WHEN n % 5 = 0 THEN NULL ELSE n END, "
            "CASE WHEN n % 2 = 0 THEN 1 + n % ? END FROM numbers",
            spec,
            len(sweeps),
        )
    lists = QueueList(stores.database)
    counts = stores.jobs.counts()
    assert sum(counts.values()) == 10_000
    assert counts["queued"] == 2000
    everything = QueueFilter()
    waiting = _all_pages(lambda limit, at: lists.waiting(everything, limit, at), 50)
    ended = _all_pages(lambda limit, at: lists.ended(everything, limit, at), 500)
    seen = [job for entry in (*waiting, *ended) for job in entry.job_ids]
    assert len(seen) == len(set(seen)) == 10_000
    assert ended[0].job_ids[0] == 9999
    one = lists.ended(QueueFilter(states=("failed",), text="job 7"), 5)
    assert one.total > 5
    assert len(one.entries) == 5


def test_the_lists_read_indexes_and_not_the_table(stores: Stores) -> None:
    """The table holds every job's whole specification: reading all of it is what takes time."""
    asked: list[str] = []
    database = stores.database
    wanted = QueueFilter(text="mails")
    connection = database._connection().conn
    connection.set_trace_callback(asked.append)
    lists = QueueList(database)
    lists.waiting(wanted, 50)
    lists.ended(wanted, 50, 5000)
    stores.jobs.counts()
    connection.set_trace_callback(None)
    assert len(asked) == 5
    for statement in asked:
        plan = [row["detail"] for row in database.query(f"EXPLAIN QUERY PLAN {statement}")]
        assert not [line for line in plan if line == "SCAN jobs"], (statement, plan)
        assert not [line for line in plan if "jobs" in line and "INDEX" not in line], plan
