"""Checkpoints that no run and no user needs any more are deleted, and nothing else."""

import itertools
import json
import logging
import random
import shutil
import threading
from pathlib import Path

import pytest
from support.job_folders import Layout, Shop, write_checkpoint
from support.stores import Stores, plain_spec
from support.waiting import PATIENCE

from slidepack.daemon.states import JobState
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.supervisor.discarding import Discarder
from slidepack.engine.contract.runfolder import RunFolder


@pytest.mark.parametrize(
    ("layout", "left"),
    [
        pytest.param([[True, True], []], ["1/1", "1/2"], id="none-of-its-own-yet"),
        pytest.param([[True, True], [True]], ["1/2", "2/1"], id="one-to-fall-back-to"),
        pytest.param([[True, True], [True, True]], ["2/1", "2/2"], id="two-of-its-own"),
        pytest.param(
            [[True, True], [False, False]], ["1/2", "2/1", "2/2"], id="newest-healthy-is-older"
        ),
        pytest.param(
            [[True, True], [True, False], [False, False]],
            ["2/1", "3/1", "3/2"],
            id="healthy-in-the-middle",
        ),
        pytest.param([[True, None], [True]], ["1/1", "2/1"], id="a-broken-one-is-no-fall-back"),
        pytest.param([[True], [True], [True], [True]], ["3/1", "4/1"], id="many-attempts"),
        pytest.param([[None], [None]], ["2/1"], id="the-live-one-keeps-even-what-is-broken"),
        pytest.param(
            [[True], [True, True, True, True]],
            ["2/1", "2/2", "2/3", "2/4"],
            id="the-live-one-minds-its-own",
        ),
    ],
)
def test_a_checkpoint_frees_those_before_it(shop: Shop, layout: Layout, left: list[str]) -> None:
    job_id = shop.job(layout)
    shop.retention.work()
    everything = shop.left(job_id)
    assert len(everything) == sum(map(len, layout)), "nobody named it"
    shop.retention.after_checkpoint(job_id)
    assert shop.left(job_id) == everything, "a note deletes nothing"
    shop.retention.work()
    assert shop.left(job_id) == left
    shop.retention.after_checkpoint(job_id)
    shop.retention.work()
    assert shop.left(job_id) == left


def test_a_worker_that_wrote_its_checkpoint_and_left_counts_too(shop: Shop) -> None:
    job_id = shop.job([[True, True], [True, True]], "queued")
    shop.retention.after_checkpoint(job_id)
    shop.retention.work()
    assert shop.left(job_id) == ["2/1", "2/2"]


def test_the_attempt_that_the_next_one_begins_from_is_left_as_its_worker_left_it(
    shop: Shop,
) -> None:
    job_id = shop.job([[True], [True, True, True]], "paused")
    shop.retention.after_checkpoint(job_id)
    shop.retention.work()
    assert shop.left(job_id) == ["2/1", "2/2", "2/3"]


def test_an_attempt_whose_worker_may_still_write_is_left_alone_whatever_its_job_is(
    shop: Shop,
) -> None:
    job_id = shop.job([[True], [True, True, True]])
    shop.stores.force(job_id, "cancelled")
    shop.retention.after_end(job_id)
    shop.retention.work()
    assert shop.left(job_id) == ["2/1", "2/2", "2/3"]


def test_there_is_always_one_to_go_on_from(shop: Shop) -> None:
    """Whatever a run went through, the first that a resume and a rescue would take stay."""
    rng = random.Random(5)
    states: tuple[JobState, ...] = ("running", "queued", "paused", "failed", "cancelled")
    for state in itertools.islice(itertools.cycle(states), 60):
        layout: Layout = [
            [rng.choice((True, True, False, None)) for _ in range(rng.randrange(4))]
            for _ in range(rng.randrange(1, 5))
        ]
        job_id = shop.job(layout, state)
        before = _loadable(shop, job_id)
        healthy = [name for name, good in before if good]
        shop.retention.after_checkpoint(job_id)
        shop.retention.after_end(job_id)
        shop.retention.work()
        after = _loadable(shop, job_id)
        assert after[:1] == before[:1]
        assert [name for name, good in after if good][:1] == healthy[:1]
        if state in ("failed", "cancelled"):
            assert len(after) <= 2
            assert len(shop.left(job_id)) == len(after)
        else:
            assert after[:2] == before[:2], "a broken newest one needs the one before"


def _loadable(shop: Shop, job_id: int) -> list[tuple[str, bool]]:
    """Return the checkpoints that a worker could read, newest first."""
    found = []
    for attempt in reversed(shop.stores.attempts.of(job_id)):
        for path in RunFolder(Path(attempt.folder)).list_checkpoints():
            try:
                state = json.loads((path / "state.json").read_bytes())
            except ValueError:
                continue
            found.append((f"{attempt.number}/{path.name}", state.get("healthy", True)))
    return found


def test_a_completed_job_keeps_its_result_and_no_checkpoint(shop: Shop) -> None:
    job_id = shop.job([[True, True], [True, False]], "completed")
    shop.retention.after_end(job_id)
    shop.retention.work()
    assert shop.left(job_id) == []
    assert (Path(shop.stores.jobs.get(job_id).result or "") / "summary.json").exists()
    assert not shop.stores.runlog.has_good_checkpoint(job_id)


def test_a_completed_job_whose_result_is_gone_keeps_what_it_could_be_made_from(
    shop: Shop,
) -> None:
    job_id = shop.job([[True, True], [True, False]], "completed")
    result = Path(shop.stores.jobs.get(job_id).result or "")
    (result / "summary.json").unlink()
    result.rmdir()
    shop.retention.after_end(job_id)
    shop.retention.work()
    assert shop.left(job_id) == ["2/1", "2/2"]


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_job_that_ended_badly_keeps_the_newest_and_the_newest_healthy(
    shop: Shop, state: JobState
) -> None:
    cases: list[tuple[Layout, list[str]]] = [
        ([[True, True], [False, False]], ["1/2", "2/2"]),
        ([[True], [True, True]], ["2/2"]),
        ([[False], [False]], ["2/1"]),
        ([[True], []], ["1/1"]),
        ([[]], []),
    ]
    for layout, left in cases:
        job_id = shop.job(layout, state)
        shop.retention.after_end(job_id)
        shop.retention.work()
        assert shop.left(job_id) == left


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_what_another_job_goes_on_from_stays_until_that_has_ended(
    shop: Shop, state: JobState
) -> None:
    first = shop.job([[True, True, True]], state)
    adopters = [shop.job([[]], waits, adopts=first) for waits in ("queued", "paused")]
    shop.retention.after_end(first)
    shop.retention.work()
    assert shop.left(first) == ["1/1", "1/2", "1/3"]
    for adopter in adopters:
        assert shop.left(first) == ["1/1", "1/2", "1/3"]
        shop.set(adopter, "cancelled")
        shop.retention.after_end(adopter)
        shop.retention.work()
    assert shop.left(first) == ([] if state == "completed" else ["1/3"])


class _RetriedMeanwhile(AttemptStore):
    """A user retries a job between two looks at its attempts."""

    def __init__(self, stores: Stores) -> None:
        super().__init__(stores.database)
        self._stores = stores
        self.looks = 0

    def of(self, job_id: int) -> list[AttemptRecord]:
        self.looks += 1
        if self.looks == 2:
            self._stores.jobs.add(plain_spec(), 0.0, adopts=job_id)
        return super().of(job_id)


def test_a_retry_that_comes_just_before_the_deletion_keeps_them(shop: Shop) -> None:
    job_id = shop.job([[True, True, True]], "failed")
    retention = shop.restart(_RetriedMeanwhile(shop.stores))
    retention.after_end(job_id)
    retention.work()
    assert shop.left(job_id) == ["1/1", "1/2", "1/3"]


def test_what_is_half_written_or_half_deleted_goes_but_not_under_a_live_worker(
    shop: Shop,
) -> None:
    job_id = shop.job([[True], [True, True]])
    for number in (1, 2):
        checkpoints = RunFolder(shop.paths.attempt(job_id, number)).checkpoints
        for name in (".step-00000009.tmp", ".step-00000008.gone"):
            write_checkpoint(checkpoints / name, True)
    shop.retention.after_checkpoint(job_id)
    shop.retention.work()
    assert shop.left(job_id) == ["2/.step-00000008.gone", "2/.step-00000009.tmp", "2/1", "2/2"]
    shop.set(job_id, "failed")
    shop.retention.after_end(job_id)
    shop.retention.work()
    assert shop.left(job_id) == ["2/2"]


def test_a_restarted_daemon_finds_what_the_one_before_left(shop: Shop) -> None:
    jobs = [shop.job([[True, True]], "completed") for _ in range(120)]
    live = shop.job([[True, True], [True, True]])
    shop.restart()
    rounds = 0
    while any(shop.left(job_id) for job_id in jobs):
        shop.retention.work()
        rounds += 1
    assert 1 < rounds < 10, "a little at a time"
    assert shop.left(live) == ["2/1", "2/2"]


def test_a_folder_that_refuses_is_named_once_and_tried_again(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    refusing, other = (shop.job([[True, True]], "completed") for _ in range(2))
    place = RunFolder(shop.paths.attempt(refusing, 1)).checkpoints / "step-00000001"
    aside = place.with_name(f".{place.name}.gone")
    # A file where a folder should be cannot be deleted as one, not even by root.
    shutil.rmtree(place)
    place.touch()
    for job_id in (refusing, other):
        shop.retention.after_end(job_id)
    for _ in range(3):
        shop.retention.work()
        assert shop.left(refusing) == [f"1/{aside.name}"], "it no longer counts, and is there"
        shop.clock.now += 61
    assert shop.left(other) == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert str(aside) in said
    assert "Not a directory" in said
    aside.unlink()
    aside.mkdir()
    shop.clock.now -= 10
    shop.retention.work()
    assert aside.exists(), "not every few seconds"
    shop.clock.now += 10
    shop.retention.work()
    assert shop.left(refusing) == []


def test_a_state_that_the_disk_does_not_tell_frees_nothing(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    job_id = shop.job([[True, True, True]], "failed")
    state = RunFolder(shop.paths.attempt(job_id, 1)).checkpoints / "step-00000003" / "state.json"
    text = state.read_text()
    state.unlink()
    # Reading a folder is an OSError for root as well.
    state.mkdir()
    for _ in range(2):
        shop.retention.after_end(job_id)
        shop.retention.work()
    assert shop.left(job_id) == ["1/1", "1/2", "1/3"]
    assert len(caplog.records) == 1
    state.rmdir()
    state.write_text(text)
    shop.clock.now += 61
    shop.retention.work()
    assert shop.left(job_id) == ["1/3"]


@pytest.mark.parametrize(
    "where", ["attempt", "attempts-folder", "checkpoints", "checkpoint", "job"]
)
def test_nothing_outside_the_jobs_is_deleted(shop: Shop, tmp_path: Path, where: str) -> None:
    outside = tmp_path / "mine"
    job_id = shop.job([[True, True]], "completed")
    root = shop.paths.attempt(job_id, 1)
    if where == "attempt":
        # The database names a folder elsewhere.
        root.rename(outside)
        shop.stores.database.execute("UPDATE attempts SET folder = ?", str(outside))
    else:
        place = {
            "attempts-folder": root,
            "checkpoints": root / "checkpoints",
            "checkpoint": root / "checkpoints" / "step-00000001",
            "job": root.parent,
        }[where]
        place.rename(outside)
        place.symlink_to(outside)
    files = {path for path in outside.rglob("*") if path.is_file()}
    assert files
    # A result is what lets a completed job's checkpoints go.
    (tmp_path / "result").mkdir()
    shop.stores.jobs.set_result(job_id, str(tmp_path / "result"))
    shop.retention.after_end(job_id)
    shop.retention.remove_job_folder(job_id)
    for _ in range(2):
        shop.retention.work()
        shop.clock.now += 61
    assert {path for path in outside.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("name", ["..", ".", "../../x", "/etc"])
def test_a_path_that_leads_up_is_refused(tmp_path: Path, name: str) -> None:
    jobs = tmp_path / "home" / "jobs"
    (jobs / "1").mkdir(parents=True)
    (tmp_path / "x").mkdir()
    discarder = Discarder(jobs)
    assert not discarder.put_aside([jobs / name])
    assert not discarder.delete([jobs / name])
    assert (jobs / "1").is_dir()
    assert (tmp_path / "x").is_dir()


def test_a_note_never_waits_for_the_database(shop: Shop) -> None:
    job_id = shop.job([[True]], "failed")
    done = threading.Event()

    def note() -> None:
        shop.retention.after_checkpoint(job_id)
        shop.retention.after_end(job_id)
        done.set()

    with shop.stores.database.transaction():
        shop.stores.jobs.set_error(job_id, None)
        thread = threading.Thread(target=note)
        thread.start()
        assert done.wait(PATIENCE)
    thread.join()


def test_notes_about_jobs_that_are_gone_do_no_harm(shop: Shop) -> None:
    shop.retention.after_checkpoint(77)
    shop.retention.after_end(77)
    shop.clock.now += 10_000
    shop.retention.work()
