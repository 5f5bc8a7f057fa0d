"""The rounds over real stores: what they see of the queue, and what a part that fails stops."""

import logging
import sqlite3
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.stores import Stores, plain_spec

from slidepack.daemon.policy.gpu_sample import no_gpus
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.rounds import Rounds
from slidepack.daemon.store.documents import Documents
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.timing import JobTiming
from slidepack.daemon.system.queue_end import QueueEnd, QueueView
from slidepack.engine.contract.errors import SlidepackError


class _RecordingEnd(QueueEnd):
    """Keeps what it was shown."""

    views: list[QueueView]

    def look(self, monotonic: float, read: Callable[[], QueueView]) -> None:
        def kept() -> QueueView:
            view = read()
            self.views.append(view)
            return view

        super().look(monotonic, kept)


class _House:
    """Rounds over one database; the machine around it stands still."""

    def __init__(self, stores: Stores, jobs: JobStore | None = None, policy: Any = None) -> None:
        documents = Documents(stores.database)
        power = SimpleNamespace(check=lambda _action: None)
        self.end = _RecordingEnd(documents, power, "boot")
        self.end.views = []
        self.end.arm("poweroff")
        self.awake: list[str] = []
        self.energy = SimpleNamespace(sample=lambda *_, **__: None)
        self.notices = SimpleNamespace(energy=self.energy, tick=lambda _now: None)
        self.rounds = Rounds(
            jobs=jobs or stores.jobs,
            attempts=stores.attempts,
            hardware=SimpleNamespace(training_cards=lambda: None, card_of=lambda _: None),  # type: ignore[arg-type]
            policy=policy or PolicyWatch(documents, sample=no_gpus),
            notices=self.notices,  # type: ignore[arg-type]
            retention=SimpleNamespace(work=lambda: None),  # type: ignore[arg-type]
            guard=SimpleNamespace(keep_awake=self.awake.append),  # type: ignore[arg-type]
            queue_end=self.end,
            chats=SimpleNamespace(  # type: ignore[arg-type]
                pids=list, device_bytes=list, wants_look=lambda: False, looked=lambda: None
            ),
            our_pids=lambda: [],
        )


class _Racing(JobStore):
    """Another connection tries to start a job once it was not among those that run."""

    def __init__(self, stores: Stores, job_id: int) -> None:
        super().__init__(stores.database)
        self._file = stores.folder / "slidepack.db"
        self._job_id = job_id
        self.armed = False

    def live(self) -> list[JobRecord]:
        found = super().live()
        if self.armed:
            other = sqlite3.connect(self._file, timeout=0, isolation_level=None)
            try:
                other.execute("UPDATE jobs SET state = 'starting' WHERE id = ?", (self._job_id,))
            except sqlite3.OperationalError as error:
                assert "locked" in str(error)
            finally:
                other.close()
        return found


def test_a_job_that_starts_during_a_look_is_no_end_of_the_queue(stores: Stores) -> None:
    first, second = (stores.jobs.add(plain_spec(), 0.0).id for _ in range(2))
    jobs = _Racing(stores, second)
    house = _House(stores, jobs)
    stores.add_attempt(first)
    stores.jobs.move(first, "starting", "its turn", 1.0)
    house.rounds.tell()
    stores.attempts.end(stores.attempt(first), "completed", 0, 2.0)
    stores.force(first, "completed")
    stores.database.execute("UPDATE jobs SET ended_at = 2.0 WHERE id = ?", first)
    jobs.armed = True
    for _ in range(3):
        house.rounds.tell()
    assert [view.live for view in house.end.views] == [1, 0, 0, 0]
    assert all(view.waiting for view in house.end.views[1:])
    assert house.end.state(0.0).phase == "armed"


def test_a_job_without_an_attempt_yet_still_counts(stores: Stores) -> None:
    job = stores.jobs.add(plain_spec(), 0.0).id
    stores.jobs.move(job, "starting", "its turn", 1.0)
    house = _House(stores)
    house.rounds.tell()
    assert [(view.live, view.waiting) for view in house.end.views] == [(0, 1)]
    stores.add_attempt(job)
    house.rounds.tell()
    assert (house.end.views[-1].live, house.end.views[-1].waiting) == (1, 0)


@pytest.mark.parametrize(
    ("window_open", "any_time", "live", "looks"),
    [
        (True, False, False, True),
        (False, False, False, False),
        (False, True, False, True),
        (False, False, True, True),
    ],
    ids=["open", "closed", "at any time", "running"],
)
def test_a_card_is_left_asleep_while_nobody_could_start(
    stores: Stores, *, window_open: bool, any_time: bool, live: bool, looks: bool
) -> None:
    job = stores.jobs.add(plain_spec(), 0.0, JobTiming(any_time=any_time)).id
    if live:
        stores.jobs.move(job, "starting", "its turn", 1.0)
        stores.add_attempt(job)
    waiting: list[bool] = []
    policy = SimpleNamespace(
        window_at=lambda _now: SimpleNamespace(open=window_open),
        look=lambda *_, waiting=True, told=waiting, **__: told.append(waiting),
    )
    _House(stores, policy=policy).rounds.look()
    assert waiting == [looks]


def test_energy_is_shared_out_among_the_lanes_of_a_worker(stores: Stores) -> None:
    for number in range(3):
        job = stores.jobs.add(plain_spec(), 0.0).id
        nonce = "alone" if number == 2 else "pack"
        stores.attempts.add(job, 1, f"/jobs/{job}", nonce, 1.0, device="cpu")
    house = _House(stores)
    shares: list[tuple[int, float, float]] = []

    def sample(
        _at: float, job: int, _number: int, _gpus: object, *, share: float, cpu_share: float
    ) -> None:
        shares.append((job, share, cpu_share))

    house.energy.sample = sample
    house.rounds.tell()
    assert shares == [(1, 0.5, 1 / 3), (2, 0.5, 1 / 3), (3, 1.0, 1 / 3)]


def _fails(error: Exception) -> Callable[..., None]:
    def fail(*_arguments: Any, **_options: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize("part", ["energy", "notices", "both"])
@pytest.mark.parametrize(
    "error",
    [
        SlidepackError("DISK-FULL", "The disk is full.", why="no space", fix="Free some."),
        PermissionError("powercap is not for you"),
        sqlite3.OperationalError("database is locked"),
        ZeroDivisionError("a bug"),
    ],
    ids=["coded", "system", "busy", "bug"],
)
def test_a_part_that_fails_stops_no_other_and_is_told_once(
    stores: Stores, caplog: pytest.LogCaptureFixture, part: str, error: Exception
) -> None:
    stores.add_attempt(stores.jobs.add(plain_spec(), 0.0).id)
    house = _House(stores)
    ticks: list[float] = []
    house.notices.tick = ticks.append
    if part in ("energy", "both"):
        house.energy.sample = _fails(error)
    if part in ("notices", "both"):
        house.notices.tick = _fails(error)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            house.rounds.tell()
    assert len(house.end.views) == 3
    assert len(ticks) == (3 if part == "energy" else 0)
    told = [record for record in caplog.records if str(error) in record.getMessage()]
    assert len(told) == (2 if part == "both" else 1)
    caplog.clear()
    # What went well in between is told again when it fails again, and so is another text.
    house.notices.tick = _fails(OSError("another"))
    house.rounds.tell()
    house.notices.tick = ticks.append
    house.rounds.tell()
    house.notices.tick = _fails(OSError("another"))
    house.rounds.tell()
    assert sum("another" in record.getMessage() for record in caplog.records) == 2


class _Failing(PolicyWatch):
    def look(self, *_arguments: object, **_options: object) -> None:
        raise OSError("gone")


def test_a_look_that_fails_keeps_the_machine_awake_all_the_same(stores: Stores) -> None:
    job = stores.jobs.add(plain_spec(), 0.0).id
    stores.add_attempt(job)
    house = _House(stores, policy=_Failing(Documents(stores.database), sample=no_gpus))
    with pytest.raises(OSError, match="gone"):
        house.rounds.look()
    assert house.awake == [f"Job {job} trains"]
