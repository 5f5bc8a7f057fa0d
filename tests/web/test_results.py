"""What is read of a job's files and events: the end of its logs, and whether it may go on."""

import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.stores import Stores, open_stores, plain_spec

from slidepack.daemon.queue import can_go_on
from slidepack.engine.contract.events import Checkpointed
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.web.results import log_tail

_LIMIT = 256 << 10


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return open_stores(tmp_path)


def _service(stores: Stores) -> Any:
    return SimpleNamespace(jobs=stores.jobs, attempts=stores.attempts, runlog=stores.runlog)


def _log(stores: Stores, job_id: int, number: int) -> Path:
    return RunFolder(Path(stores.add_attempt(job_id, number).folder)).log


def test_a_log_of_64_mb_is_read_from_its_end(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    for number in (1, 2):
        with _log(stores, job_id, number).open("wb") as file:
            file.seek(64 << 20)
            file.write(b"\n" + b"a line of the log\n" * 100_000 + b"the last words")
    service = _service(stores)
    log_tail(service, job_id)
    tracemalloc.start()
    text = log_tail(service, job_id)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert text.endswith("the last words")
    assert _LIMIT - 100 < len(text.encode()) < _LIMIT + 100
    # The bytes, their text, and the two joined.
    assert peak < 8 * _LIMIT
    assert text.startswith("--- attempt 2 (live) ---\na line of the log\n")
    assert "attempt 1 " not in text


def test_the_newest_attempts_come_first_and_are_shown_last(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    assert log_tail(_service(stores), job_id) == ""
    _log(stores, job_id, 1).write_text("one\n" * 10)
    _log(stores, job_id, 2)
    _log(stores, job_id, 3).write_text("three\n")
    service = _service(stores)
    first, second, third = (f"--- attempt {number} (live) ---\n" for number in (1, 2, 3))
    rest = f"\n{second}\n{third}three\n"
    assert log_tail(service, job_id) == first + "one\n" * 10 + rest
    assert log_tail(service, job_id, len("three\n") + 11) == first + "one\n" * 2 + rest
    assert log_tail(service, job_id, len("three\n")) == f"{third}three\n"


def test_a_line_without_an_end_is_cut_where_it_must_be(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    log = _log(stores, job_id, 1)
    for text in ("é" * 5000, "é" * 5000 + "\n"):
        log.write_text(text)
        tail = log_tail(_service(stores), job_id, 101)
        assert tail.count("é") == 50
        assert len(tail) < 140


def test_a_log_that_cannot_be_read_hides_no_other(stores: Stores) -> None:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    _log(stores, job_id, 1).write_text("one\n")
    _log(stores, job_id, 2).mkdir()
    text = log_tail(_service(stores), job_id)
    assert "one\n" in text
    assert "Its log cannot be read: Is a directory." in text


def _checkpoint(stores: Stores, job_id: int, *, healthy: bool) -> None:
    attempt = stores.add_attempt(job_id)
    path = Path(attempt.folder) / "step-5"
    path.mkdir()
    event = Checkpointed(at=1.0, step=5, path=str(path), seconds=1.0, reason="", healthy=healthy)
    stores.runlog.ingest(attempt, [event], 1)


@pytest.mark.parametrize("healthy", [True, False])
def test_a_job_may_go_on_from_a_healthy_checkpoint_of_its_own(
    stores: Stores, healthy: bool
) -> None:
    job = stores.jobs.add(plain_spec(), 0.0)
    assert not can_go_on(stores.jobs, stores.runlog, job)
    _checkpoint(stores, job.id, healthy=healthy)
    assert can_go_on(stores.jobs, stores.runlog, job) == healthy


@pytest.mark.parametrize("healthy", [True, False])
def test_a_job_may_go_on_from_what_it_went_on_from(stores: Stores, healthy: bool) -> None:
    first = stores.jobs.add(plain_spec(), 0.0)
    _checkpoint(stores, first.id, healthy=healthy)
    second = stores.jobs.add(plain_spec(), 0.0, adopts=first.id)
    third = stores.jobs.add(plain_spec(), 0.0, adopts=second.id)
    assert can_go_on(stores.jobs, stores.runlog, third) == healthy
