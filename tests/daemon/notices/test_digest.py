"""The digest: what it tells of a night, and that it comes once a day."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from support.notices import NOTHING_MEASURED, open_notices
from support.stores import Stores, plain_spec

from slidepack.daemon.notices.digest import compose, hours, watt_hours
from slidepack.daemon.notices.energy import EnergyReport
from slidepack.daemon.notices.night import (
    FailedJob,
    FinishedJob,
    NextJob,
    Night,
    OpenJob,
    read_night,
)
from slidepack.daemon.notices.notices import Notices
from slidepack.daemon.notices.settings import NoticeSettings, Outlook
from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.contract.events import Finished, Progress, Started

_BERLIN = ZoneInfo("Europe/Berlin")


def _at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=_BERLIN).timestamp()


def _done(number: int, before: float | None, after: float | None) -> FinishedJob:
    return FinishedJob(
        id=number, name=f"job {number}", seconds=7500.0, loss_before=before, loss_after=after
    )


def test_a_night_is_a_few_lines() -> None:
    night = Night(
        since=0.0,
        until=1.0,
        finished=(_done(1, 2.5, 1.5), _done(2, 3.0, 2.9), _done(3, None, None)),
        failed=(FailedJob(id=4, name="greedy", code="GPU-OUT-OF-MEMORY", why="The card is full."),),
        open=(
            OpenJob(
                id=5,
                name="long",
                step=120,
                total_steps=400,
                eta_seconds=82_800.0,
                live=True,
                reason="its worker is running",
            ),
            OpenJob(
                id=6,
                name="stuck",
                step=0,
                total_steps=0,
                eta_seconds=None,
                live=False,
                reason="waits for memory",
            ),
        ),
        cancelled=1,
        yields=("cs2 runs (Steam game 730)", "cs2 runs (Steam game 730)", "GPU 0 is at 91 °C"),
        energy=EnergyReport(
            joules=11_160_000.0,
            card_joules=11_160_000.0,
            cpu_joules=None,
            source="card only",
            seconds=3600.0,
            card_seconds=3600.0,
            cpu_seconds=0.0,
            note="only root may read the CPU's counter",
        ),
        next=(NextJob(id=6, name="stuck"), NextJob(id=7, name="next")),
        queued=4,
        tonight_seconds=36_000.0,
    )
    digest = compose(night)
    assert digest.title == "Slidepack: 3 done, 1 failed, 2 not done yet, 1 cancelled"
    assert digest.lines == (
        "Done: 1 job 1: held-out loss 2.500 → 1.500, 2 h 05 min",
        "Done: 2 job 2: held-out loss 3.000 → 2.900, 2 h 05 min",
        "Done: 3 job 3: 2 h 05 min",
        "Failed: 4 greedy: GPU-OUT-OF-MEMORY: The card is full.",
        "Going on: 5 long: step 120 of 400, 23 h 00 min left, will not finish tonight: 2.3 nights",
        "Not done: 6 stuck: waits for memory",
        "Best: 1 job 1, held-out loss lower by 1.000 (40%)",
        "Energy: 3.1 kWh (card only)",
        "Gave the GPU back 3 times: cs2 runs (Steam game 730) (2x), GPU 0 is at 91 °C",
        "Tonight: 5 long, 6 stuck, 7 next and 2 more",
    )
    assert digest.body == "\n".join(digest.lines)


def test_many_jobs_stay_short_and_no_name_breaks_a_line() -> None:
    finished = tuple(
        FinishedJob(
            id=n, name="x" * 300 + "\n\x1b[31m", seconds=None, loss_before=2.0, loss_after=3.0
        )
        for n in range(60)
    )
    failed = tuple(FailedJob(id=n, name="f", code="", why="y" * 1000) for n in range(9))
    digest = compose(
        Night(since=0.0, until=1.0, finished=finished, failed=failed, energy=NOTHING_MEASURED)
    )
    assert "… and 55 more finished" in digest.lines
    assert "… and 4 more failed" in digest.lines
    assert digest.lines[-1] == "Tonight: nothing is queued"
    assert not [line for line in digest.lines if line.startswith(("Best", "Energy", "Gave"))]
    assert all(len(line) < 220 and line.isprintable() for line in digest.lines)


def test_what_was_not_measured_is_said() -> None:
    report = EnergyReport(
        joules=None,
        card_joules=None,
        cpu_joules=None,
        source="not measured",
        seconds=60.0,
        card_seconds=0.0,
        cpu_seconds=0.0,
        note="no card reports its power",
    )
    night = Night(since=0.0, until=1.0, finished=(_done(1, None, None),), energy=report)
    assert "Energy: not measured (no card reports its power)" in compose(night).lines


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (49.4, "49 s"),
        (59.7, "1 min"),
        (3599.0, "1 h 00 min"),
        (90.0, "2 min"),
        (7260, "2 h 01 min"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert hours(value) == text


@pytest.mark.parametrize(
    ("joules", "text"),
    [(0.0, "0.0 Wh"), (1800.0, "0.5 Wh"), (1.116e6, "310 Wh"), (1.116e7, "3.1 kWh")],
)
def test_energies(joules: float, text: str) -> None:
    assert watt_hours(joules) == text


@pytest.fixture
def add(stores: Stores) -> Callable[[str], int]:
    def run(name: str) -> int:
        """Queue a job whose only attempt starts at second 100."""
        job = stores.jobs.add(plain_spec(name), 50.0)
        attempt = stores.add_attempt(job.id)
        stores.database.execute("UPDATE attempts SET started_at = 100 WHERE job_id = ?", job.id)
        stores.jobs.move(job.id, "starting", "starts", 100.0)
        started = Started(
            at=100.0,
            pid=1,
            device="cpu",
            precision="fp32",
            total_steps=10,
            from_step=0,
            train_rows=1,
            eval_rows=1,
            trainable_params=1,
            attention="x",
        )
        progress = Progress(
            at=110.0,
            step=4,
            total_steps=10,
            loss=1.0,
            grad_norm=1.0,
            lr=1e-3,
            tokens=1,
            supervised_tokens=1,
            tokens_per_second=5.0,
            eta_seconds=60.0,
        )
        stores.runlog.ingest(attempt, [started, progress], 10)
        stores.jobs.move(job.id, "running", "runs", 101.0)
        return job.id

    return run


def _end(stores: Stores, job_id: int, state: str, at: float) -> None:
    attempt = stores.attempt(job_id)
    stores.database.execute(
        "UPDATE attempts SET state = ?, ended_at = ? WHERE job_id = ?", "completed", at, job_id
    )
    if state == "completed":
        finished = Finished(
            at=at,
            steps=10,
            result="/r",
            eval_loss_before=2.0,
            eval_loss_after=1.25,
            seconds=33.0,
            tokens_per_second=5.0,
            peak_host_bytes=1,
            peak_device_bytes=0,
        )
        stores.runlog.ingest(attempt, [finished], 20)
    if state == "failed":
        error = ErrorReport(code="RUN-CRASHED", what="It died.", why="w", fix="f")
        stores.jobs.set_error(job_id, error)
    stores.jobs.move(job_id, state, "why", at)  # type: ignore[arg-type]  # the tests name states


def test_the_facts_come_from_the_rows(stores: Stores, add: Callable[[str], int]) -> None:
    done, failed, early, going, gone = (
        add(n) for n in ("done", "failed", "early", "going", "gone")
    )
    _end(stores, early, "completed", 150.0)
    _end(stores, done, "completed", 250.0)
    _end(stores, failed, "failed", 260.0)
    _end(stores, gone, "cancelled", 270.0)
    for at, reason in (
        (190.0, "its worker was asked to yield: too early"),
        (210.0, "its worker was asked to yield: cs2 runs"),
        (220.0, "its worker was asked to yield"),
        (230.0, "its worker was asked to yield: the window has closed; the next one is from 23:00"),
    ):
        stores.database.execute(
            "INSERT INTO transitions (job_id, at, from_state, to_state, reason) "
            "VALUES (?, ?, 'running', 'yielding', ?)",
            going,
            at,
            reason,
        )
    waiting = [stores.jobs.add(plain_spec(f"w{n}"), 50.0).id for n in range(5)]
    stores.database.execute("UPDATE jobs SET priority = 5 WHERE id = ?", waiting[4])
    night = read_night(stores.database, 200.0, 300.0, 3600.0)
    assert night.finished == (
        FinishedJob(id=done, name="done", seconds=33.0, loss_before=2.0, loss_after=1.25),
    )
    assert [(job.id, job.code, job.why) for job in night.failed] == [
        (failed, "RUN-CRASHED", "It died.")
    ]
    assert [(job.id, job.step, job.live, job.eta_seconds) for job in night.open] == [
        (going, 4, True, 60.0)
    ]
    assert night.cancelled == 1
    assert night.yields == ("cs2 runs",)
    assert [job.id for job in night.next] == [waiting[4], waiting[0], waiting[1]]
    assert (night.queued, night.tonight_seconds) == (5, 3600.0)
    # Borders: what ended at the end of a night belongs to the next one, and to it only.
    assert not read_night(stores.database, 0.0, 150.0, None).finished
    assert [job.id for job in read_night(stores.database, 150.0, 250.0, None).finished] == [early]


def _titles(notices: Notices) -> list[str]:
    return [notice.title for notice in notices.outbox.recent() if notice.kind == "digest"]


def test_it_comes_once_a_day_and_only_if_something_happened(
    stores: Stores, add: Callable[[str], int]
) -> None:
    notices = open_notices(stores.folder, zone=_BERLIN)
    notices.tick(_at("2026-03-27T14:00"))
    assert _titles(notices) == [], "nothing has happened"
    job = add("night")
    stores.database.execute("UPDATE attempts SET started_at = ?", _at("2026-03-28T23:30"))
    _end(stores, job, "completed", _at("2026-03-29T02:10"))
    notices.tick(_at("2026-03-28T08:00"))
    assert _titles(notices) == []
    # Summer time begins in this night.
    notices.tick(_at("2026-03-29T07:59"))
    assert _titles(notices) == []
    for minute in ("08:00", "08:01", "19:00"):
        notices.tick(_at(f"2026-03-29T{minute}"))
    assert _titles(notices) == ["Slidepack: 1 done"]
    # A restarted daemon, and the next morning, tell nothing twice.
    again = open_notices(stores.folder, zone=_BERLIN)
    for moment in ("2026-03-29T20:00", "2026-03-30T08:00"):
        again.tick(_at(moment))
    assert _titles(again) == ["Slidepack: 1 done"]


def test_a_machine_that_slept_tells_when_it_wakes_and_of_all_that_was(
    stores: Stores, add: Callable[[str], int]
) -> None:
    notices = open_notices(stores.folder, zone=_BERLIN)
    notices.tick(_at("2026-06-05T08:00"))
    _end(stores, add("friday"), "completed", _at("2026-06-05T22:00"))
    notices.tick(_at("2026-06-08T11:30"))
    assert _titles(notices) == ["Slidepack: 1 done"]
    notices.tick(_at("2026-06-08T12:00"))
    _end(stores, add("monday"), "completed", _at("2026-06-08T11:45"))
    notices.tick(_at("2026-06-09T08:00"))
    (newest, _) = notices.outbox.recent()
    assert [line for line in newest.body.splitlines() if "monday" in line]
    assert "friday" not in newest.body


@pytest.mark.parametrize(
    ("digest_at", "ended", "expected"),
    [
        ("", None, None),
        ("06:30", None, "06:30"),
        ("window", "07:10", "07:13"),
        ("window", "08:30", "08:33"),
        ("window", "never", "08:00"),
        ("window", None, "08:00"),
    ],
)
def test_the_hour_is_the_users_choice(
    stores: Stores,
    add: Callable[[str], int],
    digest_at: str,
    ended: str | None,
    expected: str | None,
) -> None:
    day = "2026-10-25"

    def outlook(now: float) -> Outlook:
        if ended is None or ended == "never":
            always = ended == "never"
            return Outlook(
                window_open=True if always else None, tonight_seconds=86_400.0 if always else None
            )
        closed = _at(f"{day}T{ended}")
        return Outlook(
            window_open=now < closed,
            window_ended_at=closed if now >= closed else None,
            tonight_seconds=36_000.0,
        )

    notices = open_notices(stores.folder, zone=_BERLIN, outlook=outlook)
    notices.choose(NoticeSettings(digest_at=digest_at))
    notices.tick(_at("2026-10-24T12:00"))
    _end(stores, add("night"), "completed", _at(f"{day}T02:30"))
    came = None
    for minute in range(6 * 60, 9 * 60):
        clock = f"{minute // 60:02d}:{minute % 60:02d}"
        notices.tick(_at(f"{day}T{clock}"))
        if came is None and _titles(notices):
            came = clock
    assert came == expected
    assert len(_titles(notices)) == (0 if expected is None else 1)


def test_a_later_hour_chosen_after_the_digest_brings_no_second_one(
    stores: Stores, add: Callable[[str], int]
) -> None:
    notices = open_notices(stores.folder, zone=_BERLIN)
    _end(stores, add("night"), "completed", _at("2026-06-05T03:00"))
    notices.tick(_at("2026-06-05T08:00"))
    notices.choose(NoticeSettings(digest_at="18:00"))
    _end(stores, add("noon"), "completed", _at("2026-06-05T12:00"))
    notices.tick(_at("2026-06-05T18:00"))
    assert len(_titles(notices)) == 1
    notices.tick(_at("2026-06-06T18:00"))
    assert len(_titles(notices)) == 2
    assert "noon" in notices.outbox.recent()[0].body


def test_the_last_night_can_be_asked_for_at_any_time(
    stores: Stores, add: Callable[[str], int]
) -> None:
    notices = open_notices(stores.folder, zone=_BERLIN)
    _end(stores, add("night"), "completed", _at("2026-06-05T03:00"))
    for asked, found in (("05T07:00", 1), ("05T18:00", 1), ("06T07:00", 0)):
        digest = notices.digest(_at(f"2026-06-{asked}"))
        assert len(digest.night.finished) == found, asked
    assert _titles(notices) == [], "asking records nothing"


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"quiet_from": "23:00"}, "quiet_to"),
        ({"quiet_from": "23:00", "quiet_to": "23:00"}, "no length"),
        ({"quiet_from": "11pm", "quiet_to": "07:00"}, "11pm"),
        ({"digest_at": "8"}, "digest_at"),
        ({"quiet_from": "window", "quiet_to": "07:00"}, "quiet_from"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        NoticeSettings(**settings)  # type: ignore[arg-type]  # the tests name fields


def test_the_choice_is_kept(tmp_path: Path) -> None:
    chosen = NoticeSettings(sends=("failed",), quiet_from="22:00", quiet_to="06:00", digest_at="")
    open_notices(tmp_path).choose(chosen)
    assert open_notices(tmp_path).settings() == chosen
