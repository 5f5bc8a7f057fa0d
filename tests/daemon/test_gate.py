"""What the policy means for one job."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from support.stores import Stores, plain_spec

from slidepack.daemon.policy.gpu_sample import no_gpus
from slidepack.daemon.policy.rules import Policy, parse_window
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.store.documents import Documents
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.supervisor.gate import PolicyGate

_NIGHTS = Policy(
    windows=(parse_window("daily", "23:00-07:00"),), time_zone="UTC", detect_games=False
)
_DAY = datetime(2026, 11, 30, tzinfo=UTC).timestamp()
_HOUR = 3600.0


class _Clock:
    """A gate over a real policy, at a time that the test chooses."""

    def __init__(self, stores: Stores) -> None:
        self._now = _DAY
        self.watch = PolicyWatch(
            Documents(stores.database), sample=no_gpus, clock=lambda: self._now
        )
        self.watch.set_policy(_NIGHTS)
        self._gate = PolicyGate(self.watch)

    def wait(self, job: JobRecord, now: float) -> str:
        self._look(now)
        return self._gate.why_wait(job, now)

    def leave(self, job: JobRecord, now: float) -> str:
        self._look(now)
        return self._gate.why_leave(job, now)

    def _look(self, now: float) -> None:
        self._now = now
        self.watch.look(now, now, ())


@pytest.fixture
def clock(stores: Stores) -> _Clock:
    return _Clock(stores)


@pytest.fixture
def job(stores: Stores) -> JobRecord:
    return stores.jobs.add(plain_spec(), _DAY)


def _with(job: JobRecord, **changes: Any) -> JobRecord:
    return msgspec.structs.replace(job, **changes)


def test_a_pause_keeps_everything_from_running(clock: _Clock, job: JobRecord) -> None:
    clock.watch.set_policy(Policy(detect_games=False))
    assert clock.wait(job, _DAY) == clock.leave(job, _DAY) == ""
    clock.watch.pause()
    for any_time in (False, True):
        changed = _with(job, any_time=any_time)
        assert clock.wait(changed, _DAY) == "waits: you paused the queue until you resume it"
        assert clock.leave(changed, _DAY) == "you paused the queue until you resume it"
    clock.watch.resume()
    assert clock.wait(job, _DAY) == clock.leave(job, _DAY) == ""


def test_a_job_waits_for_its_time_and_for_the_window(clock: _Clock, job: JobRecord) -> None:
    noon, night = _DAY + 12 * _HOUR, _DAY + 23.5 * _HOUR
    assert clock.wait(job, noon) == "waits: the window opens 23:00"
    assert clock.wait(_with(job, any_time=True), noon) == ""
    later = _with(job, not_before=night)
    assert clock.wait(later, noon) == "waits until 23:30"
    assert clock.wait(_with(later, any_time=True), noon) == "waits until 23:30"
    assert clock.wait(_with(job, not_before=noon), noon + 1) != "", "the window still binds it"
    assert clock.wait(job, night) == ""
    assert clock.wait(later, night) == ""


def test_behind_the_end_of_a_window_only_what_will_be_done_soon_goes_on(
    clock: _Clock, job: JobRecord
) -> None:
    end = _DAY + 7 * _HOUR
    running = _with(job, state="running")
    assert clock.leave(_with(running, eta_seconds=9e9), end - 1) == ""
    for eta in (None, 1201.0):
        assert "has closed" in clock.leave(_with(running, eta_seconds=eta), end)
    soon = _with(running, eta_seconds=1200.0)
    assert clock.leave(soon, end) == ""
    # It is late: what it had left when the window closed does not begin anew.
    assert "has closed" in clock.leave(soon, end + 1)
    assert clock.leave(_with(running, eta_seconds=600.0), end + 600) == ""
    saving = _with(running, state="finishing", eta_seconds=None)
    assert clock.leave(saving, end + 1200) == ""
    assert "has closed" in clock.leave(saving, end + 1201)
    assert clock.leave(_with(running, any_time=True), end + 1) == ""


def test_the_night_in_which_the_clock_is_set_back_is_an_hour_longer(
    clock: _Clock, job: JobRecord
) -> None:
    # Summer time ends at 03:00 on 2026-10-25 in Berlin.
    clock.watch.set_policy(msgspec.structs.replace(_NIGHTS, time_zone="Europe/Berlin"))
    opening = datetime(2026, 10, 24, 21, 0, tzinfo=UTC).timestamp()
    assert clock.wait(job, opening - 1) == "waits: the window opens 23:00"
    assert clock.wait(job, opening) == ""
    assert clock.wait(job, opening + 9 * _HOUR - 1) == ""
    assert clock.wait(job, opening + 9 * _HOUR) != ""
