"""The watch as the daemon uses it: an injected probe, a clock of the test's, a real database."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.cards import GB, card, user
from support.waiting import PATIENCE

from slidepack.daemon.policy.applications import Application, Applications
from slidepack.daemon.policy.gpu_sample import GpuSample
from slidepack.daemon.policy.rules import Policy, parse_window
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.policy.windows_side import WindowsSide
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.documents import Documents
from slidepack.engine.contract.errors import SlidepackError

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
OURS = 100


class _NoPrograms(Applications):
    """No program but those that the test names."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"), own_pid=1)
        self.running: tuple[Application, ...] = ()
        self.fails = False

    def find(self, *_arguments: object) -> tuple[Application, ...]:
        if self.fails:
            raise PermissionError("/proc is not for you")
        return self.running


class _House:
    """A machine: its cards, its programs, its clocks, and the watch over them."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.now = NOON
        self.monotonic = 50.0
        self.sample = GpuSample(gpus=(card(),))
        self.samples = 0
        self.changes = 0
        self.programs = _NoPrograms()
        self.options = options
        self.watch = self.open()

    def open(self) -> PolicyWatch:
        """Open the database anew, as a restarted daemon does."""
        return PolicyWatch(
            Documents(Database(self.folder / "slidepack.db")),
            sample=self._sampled,
            applications=self.programs,
            changed=self._changed,
            clock=lambda: self.now,
            **self.options,
        )

    def _sampled(self) -> GpuSample:
        self.samples += 1
        return self.sample

    def _changed(self) -> None:
        self.changes += 1

    def look(self, seconds: int = 1, *our_pids: int, **options: Any) -> None:
        for _ in range(seconds):
            self.now += 1
            self.monotonic += 1
            self.watch.look(self.now, self.monotonic, our_pids, **options)

    @property
    def code(self) -> str:
        hold = self.watch.hold()
        return "" if hold is None else hold.code

    @property
    def reason(self) -> str:
        hold = self.watch.hold()
        return "" if hold is None else hold.reason


@pytest.fixture
def house(tmp_path: Path) -> _House:
    return _House(tmp_path)


def test_nothing_starts_before_somebody_has_looked(house: _House) -> None:
    assert "looked for first" in house.watch.why_wait(house.now)
    house.look()
    assert house.watch.why_wait(house.now) == ""
    # A look of long ago says nothing either, nor does one by a clock that was set back since.
    assert house.watch.why_wait(house.now + 60)
    assert house.watch.why_wait(house.now - 60)


def test_a_foreign_program_takes_the_card_and_gives_it_back(house: _House) -> None:
    house.look(3, OURS)
    ours = user("python3", 9, pid=OURS, percent=100)
    house.sample = GpuSample(gpus=(card(ours, user("cs2", 5.1), used=14.5),))
    house.look(2, OURS)
    assert house.code == ""
    assert "waits to see whether that lasts" in house.watch.why_wait(house.now)
    house.look(6, OURS)
    assert house.reason == "cs2 holds 5.1 GB of GPU 0 (RTX 4090)"
    assert house.watch.why_leave(house.now) == house.reason
    house.sample = GpuSample(gpus=(card(),))
    house.look(3)
    assert "cs2 held 5.1 GB" in house.reason
    state = house.watch.state(house.now)
    assert not state.may_run
    assert state.hold is not None
    assert state.next_change == state.hold.until
    house.look(600)
    assert house.code == ""
    assert house.watch.state(house.now).may_run


def test_our_own_load_never_counts_also_while_a_worker_leaves(house: _House) -> None:
    ours = user("python3", 20, pid=OURS, percent=100)
    full = GpuSample(gpus=(card(ours, used=20.4, utilisation_percent=100),))
    house.look(15)
    house.sample = full
    house.look(60, OURS)
    assert house.code == ""
    # The worker has ended; the driver still lists it for a while.
    house.look(20)
    assert (house.code, house.watch.why_wait(house.now)) == ("", "")
    # And where no process is listed at all, the total falls late.
    house.look(5, OURS)
    house.sample = GpuSample(gpus=(card(used=20.4, utilisation_percent=100),))
    house.look(8)
    assert (house.code, house.watch.why_wait(house.now)) == ("", "")
    house.look(15)
    assert house.code == "foreign-vram", "ours would be gone by now"


def test_a_driver_without_a_process_list_uses_the_plan(house: _House) -> None:
    house.look(15)
    house.sample = GpuSample(gpus=(card(used=9.0, utilisation_percent=100),))
    house.look(30, OURS, planned_vram_bytes=8 * GB)
    assert house.code == ""
    house.sample = GpuSample(gpus=(card(used=20.0, utilisation_percent=100),))
    house.look(10, OURS, planned_vram_bytes=8 * GB)
    assert house.reason.startswith("another program holds")


def test_a_hot_card_holds_until_it_has_cooled(house: _House) -> None:
    house.sample = GpuSample(gpus=(card(temperature_celsius=90),))
    house.look(8, OURS)
    assert house.code == "hot"
    house.sample = GpuSample(gpus=(card(temperature_celsius=80),))
    house.look(120)
    assert house.code == "hot", "below the limit is not cooled"
    house.sample = GpuSample(gpus=(card(temperature_celsius=70),))
    house.look(59)
    assert house.code == "hot"
    house.look(5)
    assert house.code == ""


def test_a_card_that_vanishes_holds_until_it_is_back_or_the_user_says_so(house: _House) -> None:
    house.look(3, OURS)
    house.sample = GpuSample(problem="The NVIDIA driver does not answer. NVML: GPU is lost")
    house.look(8, OURS)
    assert house.code == "gpu-lost"
    assert "GPU is lost" in house.reason
    assert house.watch.state(house.now).notices == (house.sample.problem,)
    house.watch.resume()
    assert house.code == ""
    house.look(30)
    assert house.code == ""
    house.sample = GpuSample(gpus=(card(),))
    house.look(3)
    house.sample = GpuSample()
    house.look(8)
    assert house.code == "gpu-lost"
    house.sample = GpuSample(gpus=(card(),))
    house.look(70)
    assert house.code == ""


def test_cards_that_training_does_not_use_do_not_matter(house: _House) -> None:
    other = card(user("cs2", 9), used=9.4, uuid="GPU-2", index=1, temperature_celsius=95)
    house.sample = GpuSample(gpus=(card(), other))
    house.look(10, OURS, cards=frozenset({"GPU-1"}))
    assert house.code == ""
    house.look(10, OURS)
    assert house.code == "hot"


def test_an_application_holds_and_windows_ones_too(tmp_path: Path) -> None:
    script = tmp_path / "tasklist"
    script.write_text('#!/bin/sh\nprintf \'"game.exe","1","Console","1","1 K"\\r\\n\'\n')
    script.chmod(0o755)
    house = _House(tmp_path, windows_side=WindowsSide((str(script),)))
    house.watch.set_policy(Policy(exclusive_apps=("game",), pause_after_seconds=0))
    house.look()
    assert house.reason == "game.exe runs (an exclusive application, in Windows)"
    house.programs.running = (Application(pid=5, name="cs2", kind="steam", app_id="730"),)
    house.look()
    assert house.reason == "cs2 runs (Steam game 730)"


def test_what_cannot_be_seen_is_told_once_and_holds_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    house = _House(tmp_path, windows_side=WindowsSide((str(tmp_path / "none"),)))
    house.watch.set_policy(Policy(exclusive_apps=("game",)))
    house.programs.fails = True
    house.look(20)
    assert house.code == ""
    programs, windows = house.watch.state(house.now).notices
    assert "not for you" in programs
    assert "programs of Windows are not seen" in windows
    assert len(caplog.records) == 2
    house.programs.fails = False
    house.look()
    assert house.watch.state(house.now).notices == (windows,)


def test_cards_are_asked_every_two_seconds_and_only_while_it_matters(house: _House) -> None:
    house.look(10, waiting=False)
    assert house.samples == 0
    house.look(10)
    assert house.samples == 5
    house.look(10, OURS, waiting=False)
    assert house.samples == 10
    assert len(house.watch.gpus()) == 1
    house.look(2, waiting=False)
    assert "looked for first" in house.watch.why_wait(house.now)


def test_a_pause_outlives_the_daemon(house: _House) -> None:
    house.watch.pause()
    assert house.reason == "you paused the queue until you resume it"
    since = house.watch.hold()
    house.now += 1e6
    house.watch = house.open()
    assert house.watch.hold() == since
    house.look(1000)
    assert house.code == "paused"
    house.watch.resume()
    assert house.code == ""
    assert house.open().hold() is None


def test_a_pause_with_an_end_ends_by_itself_also_while_no_daemon_runs(house: _House) -> None:
    house.watch.set_policy(Policy(time_zone="UTC"))
    house.watch.pause(NOON + 7200)
    assert house.reason == "you paused the queue until 14:00"
    assert house.watch.state(house.now).next_change == NOON + 7200
    changes = house.changes
    house.now = NOON + 7199
    assert house.code == "paused"
    house.look(2)
    assert house.code == ""
    assert house.changes == changes + 1
    house.now = NOON
    assert house.open().hold() is None, "it is no longer stored"
    house.watch.pause(NOON + 60)
    house.now = NOON + 61
    assert house.open().hold() is None


def test_a_pause_that_has_passed_is_refused(house: _House) -> None:
    for until in (NOON, NOON - 5, float("nan"), float("inf")):
        with pytest.raises(SlidepackError, match="DAEMON-REQUEST-INVALID"):
            house.watch.pause(until)
    assert house.code == ""


def test_a_pause_is_told_before_all_else_and_resuming_keeps_what_runs(house: _House) -> None:
    house.sample = GpuSample(gpus=(card(user("cs2", 9), used=9.4),))
    house.look(8)
    house.watch.pause()
    assert house.code == "paused"
    house.watch.resume()
    assert house.code == "foreign-vram"
    house.sample = GpuSample(gpus=(card(),))
    house.look(3)
    house.watch.resume()
    assert house.code == "", "the quiet time is over when the user says so"


def test_sleep_holds_at_once_and_no_longer_than_it_lasts(house: _House) -> None:
    house.look()
    house.watch.sleeping(True)
    assert house.code == "sleep"
    assert house.watch.why_leave(house.now)
    house.watch.sleeping(False)
    assert house.code == ""


NIGHT = Policy(windows=(parse_window("daily", "23:00-07:00"),), time_zone="UTC")


def test_outside_the_window_nothing_starts_but_what_may_at_any_time(house: _House) -> None:
    house.watch.set_policy(NIGHT)
    house.look()
    assert house.watch.why_wait(house.now) == "the window opens 23:00"
    assert house.watch.why_wait(house.now, any_time=True) == ""
    assert house.watch.tonight(house.now) == NOON + 11 * 3600
    state = house.watch.state(house.now)
    assert (state.may_run, state.next_change) == (False, NOON + 11 * 3600)
    house.now = NOON + 12 * 3600
    house.look()
    assert house.watch.why_wait(house.now) == ""
    assert house.watch.state(house.now).summary == "training may run until 07:00"


def test_at_the_windows_end_only_what_is_nearly_done_may_finish(house: _House) -> None:
    house.watch.set_policy(NIGHT)
    seven = NOON + 19 * 3600
    leave = house.watch.why_leave
    assert leave(seven - 1, seconds_left=9999) == ""
    assert leave(seven, seconds_left=1200) == ""
    assert leave(seven, seconds_left=1201) == "the window has closed; the window opens 23:00"
    assert leave(seven, seconds_left=None)
    assert leave(seven, seconds_left=None, any_time=True) == ""
    # An estimate that slips does not buy more than the twenty minutes.
    assert leave(seven + 1000, seconds_left=200) == ""
    assert leave(seven + 1000, seconds_left=201)
    assert leave(seven + 1201, seconds_left=0)


def test_a_hold_and_a_closed_window_change_when_both_end(house: _House) -> None:
    house.watch.set_policy(NIGHT)
    house.watch.pause(NOON + 60)
    assert house.watch.state(house.now).next_change == NOON + 11 * 3600
    house.watch.pause(NOON + 12 * 3600)
    assert house.watch.state(house.now).next_change == NOON + 12 * 3600
    house.watch.pause()
    assert house.watch.state(house.now).next_change is None


def test_a_policy_outlives_the_daemon_and_changes_field_by_field(house: _House) -> None:
    house.watch.set_policy(NIGHT)
    house.watch.change_policy({"max_gpu_celsius": 80, "exclusive_apps": ["cs2"]})
    expected = msgspec.structs.replace(NIGHT, max_gpu_celsius=80.0, exclusive_apps=("cs2",))
    assert house.watch.policy() == expected
    assert house.open().policy() == expected
    refused: list[dict[str, Any]] = [
        {"max_gpu_celsius": 10},
        {"max_celsius": 80},
        {"windows": [{}]},
    ]
    for changes in refused:
        with pytest.raises(SlidepackError, match="DAEMON-REQUEST-INVALID"):
            house.watch.change_policy(changes)
    assert house.watch.policy() == expected


class _Other(msgspec.Struct):
    windows: str = "of another version"


@pytest.mark.parametrize("key", ["policy", "pause"])
def test_what_is_stored_and_cannot_be_read_holds_everything(tmp_path: Path, key: str) -> None:
    Documents(Database(tmp_path / "slidepack.db")).put(key, _Other())
    house = _House(tmp_path)
    house.look()
    assert house.code == "paused"
    if key == "policy":
        house.watch.resume()
        assert house.code == "paused", "the hours that somebody set are not known"
        house.watch.set_policy(Policy())
    else:
        house.watch.resume()
    assert house.code == ""


def test_the_page_hears_of_every_change_and_not_of_each_second(house: _House) -> None:
    steps: list[tuple[Callable[[], None], int]] = [
        (lambda: house.look(20), 0),
        (lambda: house.watch.set_policy(Policy(foreign_vram_mb=1000)), 1),
        (lambda: house.watch.pause(), 1),
        (lambda: house.watch.resume(), 1),
    ]
    for step, expected in steps:
        before = house.changes
        step()
        assert house.changes - before == expected
    house.sample = GpuSample(gpus=(card(user("cs2", 9), used=9.4),))
    before = house.changes
    house.look(30)
    house.sample = GpuSample(gpus=(card(),))
    house.look(300)
    assert house.changes - before == 2


def test_the_supervisor_is_not_kept_waiting_by_a_driver_that_hangs(house: _House) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hang() -> GpuSample:
        asked.set()
        answer.wait(PATIENCE)
        return GpuSample()

    watch = PolicyWatch(
        Documents(Database(house.folder / "slidepack.db")),
        sample=hang,
        applications=house.programs,
        clock=lambda: house.now,
    )
    looker = threading.Thread(target=watch.look, args=(NOON, 1.0, ()))
    looker.start()
    assert asked.wait(PATIENCE)
    watch.pause()
    hold = watch.hold()
    assert hold is not None
    assert hold.code == "paused"
    assert watch.state(NOON).may_run is False
    answer.set()
    looker.join()
