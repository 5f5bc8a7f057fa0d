"""What happens at the queue's end, and all that keeps it from happening."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from support.private_bus import FakeLogind, PrivateBus
from support.waiting import PATIENCE

from slidepack.daemon.store.database import Database
from slidepack.daemon.store.documents import Documents
from slidepack.daemon.system.logind import Logind, PowerAction
from slidepack.daemon.system.queue_end import (
    COUNTDOWN_SECONDS,
    DOCUMENT,
    QueueEnd,
    QueueEndChoice,
    QueueView,
)
from slidepack.engine.contract.errors import SlidepackError

BUSY = QueueView(live=1, waiting=2, hold="")
QUEUED = QueueView(live=0, waiting=1, hold="")
DONE = QueueView(live=0, waiting=0, hold="")
PLAYING = QueueView(live=0, waiting=0, hold="cs2 runs")
BOOT = "boot-1"


class Power:
    """Writes down what it was asked for."""

    def __init__(self) -> None:
        self.done: list[PowerAction] = []
        self.refusal: SlidepackError | None = None

    def check(self, action: PowerAction) -> None:
        if self.refusal is not None:
            raise self.refusal

    def perform(self, action: PowerAction) -> None:
        self.done.append(action)
        if self.refusal is not None:
            raise self.refusal


@pytest.fixture
def documents(tmp_path: Path) -> Documents:
    return Documents(Database(tmp_path / "slidepack.db"))


@pytest.fixture
def power() -> Power:
    return Power()


@pytest.fixture
def end(documents: Documents, power: Power) -> QueueEnd:
    return QueueEnd(documents, power, BOOT)


def _look(end: QueueEnd, second: float, view: QueueView) -> None:
    end.look(second, lambda: view)


def _counting(end: QueueEnd, action: PowerAction = "poweroff") -> None:
    """Arm it and let a queue end at second 100."""
    end.arm(action)
    _look(end, 0.0, BUSY)
    _look(end, 95.0, DONE)
    _look(end, 100.0, DONE)
    assert end.state(100.0).seconds_left == COUNTDOWN_SECONDS


def _phase(end: QueueEnd, now: float = 100.0) -> str:
    return end.state(now).phase


@pytest.mark.parametrize("action", ["suspend", "poweroff"])
def test_it_happens_once_five_minutes_after_the_last_job(
    end: QueueEnd, power: Power, action: PowerAction
) -> None:
    _counting(end, action)
    _look(end, 399.9, DONE)
    assert power.done == []
    assert end.state(160.0).seconds_left == 240
    _look(end, 400.0, DONE)
    assert power.done == [action]
    for second in range(401, 2000, 100):
        _look(end, float(second), DONE)
    _look(end, 2000.0, BUSY)
    _look(end, 2100.0, DONE)
    _look(end, 9999.0, DONE)
    assert power.done == [action]
    assert _phase(end) == "off"


def test_nothing_is_chosen_until_somebody_chooses(end: QueueEnd, power: Power) -> None:
    _look(end, 0.0, BUSY)
    _look(end, 1.0, DONE)
    _look(end, 9999.0, DONE)
    assert (power.done, _phase(end)) == ([], "off")


def test_jobs_that_wait_are_no_end(end: QueueEnd, power: Power) -> None:
    end.arm("poweroff")
    _look(end, 0.0, BUSY)
    for second in range(0, 30_000, 600):
        _look(end, float(second), QUEUED)
    assert (power.done, _phase(end)) == ([], "armed")
    _look(end, 30_000.0, BUSY)
    _look(end, 30_001.0, DONE)
    assert _phase(end, 30_001.0) == "armed", "one look may be a job between two states"
    _look(end, 30_006.0, DONE)
    assert _phase(end, 30_006.0) == "counting"


def test_an_empty_queue_is_no_end_of_one(end: QueueEnd, power: Power) -> None:
    end.arm("poweroff")
    _look(end, 0.0, DONE)
    _look(end, 9999.0, DONE)
    assert (power.done, _phase(end)) == ([], "armed")


def test_a_queue_that_was_emptied_by_hand_is_no_end_of_one(end: QueueEnd, power: Power) -> None:
    end.arm("poweroff")
    _look(end, 0.0, QUEUED)
    _look(end, 1.0, DONE)
    _look(end, 9999.0, DONE)
    assert (power.done, _phase(end)) == ([], "armed")


def test_five_minutes_to_say_no(end: QueueEnd, power: Power) -> None:
    _counting(end)
    _look(end, 399.0, DONE)
    end.cancel()
    _look(end, 400.0, DONE)
    _look(end, 9999.0, DONE)
    assert (power.done, _phase(end)) == ([], "off")
    assert end.state(0.0).note == "cancelled"


@pytest.mark.parametrize(
    ("view", "said"), [(QUEUED, "new job"), (BUSY, "new job"), (PLAYING, "cs2 runs")]
)
def test_somebody_at_the_machine_disarms_it(
    end: QueueEnd, power: Power, view: QueueView, said: str
) -> None:
    _counting(end)
    _look(end, 200.0, view)
    _look(end, 500.0, DONE)
    _look(end, 9999.0, DONE)
    assert (power.done, _phase(end)) == ([], "off")
    assert said in end.state(0.0).note


def test_a_queue_that_ends_while_somebody_plays_leaves_the_machine_on(
    end: QueueEnd, power: Power
) -> None:
    end.arm("poweroff")
    _look(end, 0.0, BUSY)
    _look(end, 100.0, PLAYING)
    _look(end, 200.0, DONE)
    _look(end, 9999.0, DONE)
    assert (power.done, _phase(end)) == ([], "off")


def test_a_game_during_the_night_does_not_disarm_it(end: QueueEnd, power: Power) -> None:
    end.arm("suspend")
    _look(end, 0.0, BUSY)
    _look(end, 100.0, QueueView(live=0, waiting=1, hold="cs2 runs"))
    _look(end, 200.0, BUSY)
    _look(end, 295.0, DONE)
    _look(end, 300.0, DONE)
    _look(end, 600.0, DONE)
    assert power.done == ["suspend"]


def test_a_machine_that_was_put_to_sleep_by_hand_stays_on(end: QueueEnd, power: Power) -> None:
    end.woke_up()
    _counting(end)
    end.woke_up()
    _look(end, 9999.0, DONE)
    assert (power.done, _phase(end)) == ([], "off")
    end.arm("poweroff")
    end.woke_up()
    assert _phase(end) == "armed", "without a countdown it is only a sleep"


def test_chosen_again_during_the_countdown_it_waits_for_another_queue(
    end: QueueEnd, power: Power
) -> None:
    _counting(end)
    end.arm("suspend")
    _look(end, 9999.0, DONE)
    assert (power.done, _phase(end)) == ([], "armed")
    end.arm("nothing")
    assert _phase(end) == "off"


def test_a_restart_before_the_end_keeps_the_choice(documents: Documents, power: Power) -> None:
    first = QueueEnd(documents, power, BOOT)
    first.arm("poweroff")
    _look(first, 0.0, BUSY)
    second = QueueEnd(documents, power, BOOT)
    assert second.state(0.0).action == "poweroff"
    # The last job ended while no daemon looked.
    _look(second, 0.0, DONE)
    _look(second, 9999.0, DONE)
    assert power.done == []
    _look(second, 10_000.0, BUSY)
    _look(second, 10_000.5, DONE)
    _look(second, 10_001.0, DONE)
    _look(second, 10_001.0 + COUNTDOWN_SECONDS, DONE)
    assert power.done == ["poweroff"]


@pytest.mark.parametrize(
    ("boot", "said"), [(BOOT, "countdown"), ("boot-2", "machine was restarted"), ("", "restarted")]
)
def test_a_restart_during_the_countdown_leaves_the_machine_on(
    end: QueueEnd, documents: Documents, power: Power, boot: str, said: str
) -> None:
    _counting(end)
    second = QueueEnd(documents, power, boot)
    assert said in second.state(0.0).note
    _look(second, 0.0, DONE)
    _look(second, 9999.0, DONE)
    third = QueueEnd(documents, power, boot)
    assert (power.done, third.state(0.0).action) == ([], "nothing")
    assert said in third.state(0.0).note


def test_a_reboot_forgets_the_choice(documents: Documents, power: Power) -> None:
    QueueEnd(documents, power, BOOT).arm("poweroff")
    assert QueueEnd(documents, power, "boot-2").state(0.0).action == "nothing"


def test_where_nobody_knows_the_boot_a_restart_forgets_the_choice(
    documents: Documents, power: Power
) -> None:
    QueueEnd(documents, power, "").arm("poweroff")
    assert QueueEnd(documents, power, "").state(0.0).action == "nothing"


def test_a_daemon_that_dies_while_it_acts_does_not_act_again(
    documents: Documents, power: Power
) -> None:
    class Dies(Power):
        def perform(self, action: PowerAction) -> None:
            raise KeyboardInterrupt

    end = QueueEnd(documents, Dies(), BOOT)
    _counting(end)
    with pytest.raises(KeyboardInterrupt):
        _look(end, 400.0, DONE)
    again = QueueEnd(documents, power, BOOT)
    _look(again, 0.0, BUSY)
    _look(again, 1.0, DONE)
    _look(again, 9999.0, DONE)
    assert power.done == []


def test_what_cannot_work_is_refused_when_it_is_chosen(end: QueueEnd, power: Power) -> None:
    power.refusal = SlidepackError("DAEMON-POWER-REFUSED", "No.", why="polkit", fix="Ask.")
    with pytest.raises(SlidepackError):
        end.arm("poweroff")
    assert _phase(end) == "off"
    end.arm("nothing")


def test_a_refusal_at_the_end_is_told_and_not_repeated(end: QueueEnd, power: Power) -> None:
    _counting(end)
    power.refusal = SlidepackError("DAEMON-POWER-REFUSED", "No.", why="polkit", fix="Ask.")
    _look(end, 400.0, DONE)
    _look(end, 500.0, DONE)
    assert power.done == ["poweroff"]
    assert "DAEMON-POWER-REFUSED" in end.state(0.0).note


def test_a_choice_of_another_version_is_no_choice(documents: Documents, power: Power) -> None:
    documents.put(DOCUMENT, QueueView(live=1, waiting=0, hold=""))
    assert QueueEnd(documents, power, BOOT).state(0.0).action == "nothing"
    documents.put(DOCUMENT, QueueEndChoice())
    assert QueueEnd(documents, power, BOOT).state(0.0).action == "nothing"


def test_through_a_real_login_manager(
    bus: PrivateBus, fake_logind: FakeLogind, documents: Documents
) -> None:
    end = QueueEnd(documents, Logind(bus.address), BOOT)
    _counting(end, "suspend")
    _look(end, 250.0, DONE)
    end.cancel()
    _look(end, 500.0, DONE)
    assert fake_logind.count("Suspend") == 0
    _counting(end, "suspend")
    _look(end, 400.0, DONE)
    _look(end, 900.0, DONE)
    assert fake_logind.count("Suspend") == 1
    fake_logind.can["CanPowerOff"] = "challenge"
    with pytest.raises(SlidepackError):
        end.arm("poweroff")


class _Slow(Documents):
    """Takes its time over a write, as beside a long transaction of another thread."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def put(self, key: str, value: msgspec.Struct) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE)
        super().put(key, value)


@pytest.mark.parametrize(
    "write",
    [
        lambda end: end.arm("suspend"),
        lambda end: end.cancel(),
        lambda end: end.woke_up(),
        lambda end: _look(end, 200.0, QUEUED),
    ],
    ids=["arm", "cancel", "wake up", "look"],
)
def test_its_state_is_told_at_once_while_it_is_written(
    tmp_path: Path, power: Power, write: Callable[[QueueEnd], None]
) -> None:
    documents = _Slow(Database(tmp_path / "slow.db"))
    end = QueueEnd(documents, power, BOOT)
    _counting(end)
    documents.begun.clear()
    documents.go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(write, end)
        assert documents.begun.wait(PATIENCE)
        try:
            assert pool.submit(end.state, 160.0).result(20).seconds_left == 240
        finally:
            documents.go_on.set()
        writing.result(20)
    assert _phase(end) in ("off", "armed")


class _Full(Documents):
    """On a disk that fills up at the very end of a transaction."""

    full = False

    def put(self, key: str, value: msgspec.Struct) -> None:
        super().put(key, value)
        if self.full:
            raise SlidepackError("DISK-FULL", "Full.", why="no space", fix="Free some.")


@pytest.mark.parametrize("then", [DONE, QUEUED])
def test_what_could_not_be_stored_is_not_so(tmp_path: Path, power: Power, then: QueueView) -> None:
    documents = _Full(Database(tmp_path / "full.db"))
    end = QueueEnd(documents, power, BOOT)
    _counting(end)
    documents.full = True
    with pytest.raises(SlidepackError):
        _look(end, 400.0, then)
    assert (power.done, _phase(end)) == ([], "counting")
    documents.full = False
    _look(end, 401.0, then)
    assert power.done == (["poweroff"] if then == DONE else [])
