"""Hysteresis: what counts when, by a clock that the test moves."""

from hypothesis import given, settings
from hypothesis import strategies as st

from slidepack.daemon.policy.holding import Hold, Holding, Reason, duration_text

GAME = Reason("application", text="cs2 runs", past="cs2 ran")
HOT = Reason("hot", text="GPU 0 is at 90 °C", past="GPU 0 was hot")
LOAD = Reason("foreign-load", text="blender takes 80%", past="blender took 80%")
_EPOCH = 1_800_000_000.0


class _Clockwork:
    """A holding, looked at once a second."""

    def __init__(self, pause_after: float = 5.0, resume_after: float = 600.0) -> None:
        self.holding = Holding()
        self.now = _EPOCH
        self.monotonic = 1000.0
        self._limits = {"pause_after": pause_after, "resume_after": resume_after}

    def see(self, seconds: int, *reasons: Reason, step: float = 1.0) -> Hold | None:
        hold = None
        for _ in range(seconds):
            hold = self.once(*reasons, step=step)
        return hold

    def once(self, *reasons: Reason, step: float = 1.0, wall: float | None = None) -> Hold | None:
        self.monotonic += step
        self.now += step if wall is None else wall
        return self.holding.observe(self.now, self.monotonic, reasons, **self._limits)


def test_a_reason_counts_once_it_lasts() -> None:
    clock = _Clockwork()
    assert clock.see(5, GAME) is None
    assert clock.holding.pending() == "cs2 runs"
    hold = clock.once(GAME)
    assert hold is not None
    assert (hold.code, hold.reason, hold.until) == ("application", "cs2 runs", None)
    assert hold.since == _EPOCH + 1
    assert clock.holding.pending() == ""


def test_a_flicker_never_counts_however_often_it_comes() -> None:
    clock = _Clockwork()
    for _ in range(50):
        assert clock.see(5, LOAD) is None
        assert clock.see(1) is None


def test_no_delay_counts_at_the_first_sight() -> None:
    assert _Clockwork(pause_after=0.0).once(GAME) is not None


def test_quiet_must_last_and_says_how_much_is_left() -> None:
    clock = _Clockwork()
    clock.see(10, GAME)
    hold = clock.see(181)
    assert hold is not None
    assert hold.reason == "cs2 ran; goes on after 10 min of quiet: 7 min left"
    assert hold.until == clock.now + 420
    assert clock.see(419) is not None
    assert clock.once() is None


def test_a_reason_that_comes_back_for_good_starts_the_quiet_anew() -> None:
    clock = _Clockwork()
    clock.see(10, GAME)
    clock.see(500)
    hold = clock.see(6, GAME)
    assert hold is not None
    assert hold.until is None
    assert clock.see(600) is not None
    assert clock.once() is None


def test_a_flicker_in_the_quiet_does_not_start_it_anew_but_nothing_starts_beside_it() -> None:
    clock = _Clockwork()
    clock.see(10, GAME)
    clock.see(598)
    assert clock.see(5, GAME) is not None, "while it is there"
    assert clock.once() is None


def test_a_hot_card_waits_for_its_own_quiet_and_is_told_first() -> None:
    clock = _Clockwork()
    hold = clock.see(6, GAME, HOT)
    assert hold is not None
    assert hold.code == "hot"
    hold = clock.see(62, GAME)
    assert hold is not None
    assert hold.code == "application"
    cooled = _Clockwork()
    cooled.see(6, HOT)
    assert cooled.see(60) is not None
    assert cooled.once() is None


def test_what_is_there_is_told_before_what_only_waits_for_quiet() -> None:
    clock = _Clockwork()
    clock.see(6, HOT, LOAD)
    hold = clock.once(LOAD)
    assert hold is not None
    assert (hold.code, hold.until) == ("foreign-load", None)
    hold = clock.once()
    assert hold is not None
    assert hold.until == clock.now + 600, "the longest quiet counts"


def test_a_set_wall_clock_changes_no_duration() -> None:
    clock = _Clockwork()
    clock.see(6, GAME)
    clock.see(301)
    for jump in (-7200.0, 86400.0):
        hold = clock.once(wall=jump)
        assert hold is not None
        assert hold.reason.endswith("5 min left")
    assert clock.see(297) is not None
    assert clock.once() is None


def test_time_in_which_nobody_looked_is_no_quiet_time() -> None:
    clock = _Clockwork()
    clock.see(6, GAME)
    clock.once()
    hold = clock.once(step=8 * 3600.0)
    assert hold is not None
    assert hold.until == clock.now + 590
    assert clock.once(step=-50.0) is not None, "a clock that went backwards"


def test_a_gap_makes_a_glimpse_last_no_longer_than_it_can_have() -> None:
    clock = _Clockwork(pause_after=60.0)
    clock.once(GAME)
    assert clock.once(GAME, step=3600.0) is None
    assert clock.see(50, GAME) is not None


def test_the_user_can_cut_the_quiet_but_not_a_game_that_runs() -> None:
    clock = _Clockwork()
    clock.see(6, GAME, LOAD)
    clock.once(GAME)
    clock.holding.cut_quiet()
    hold = clock.holding.hold(clock.now)
    assert hold is not None
    assert hold.code == "application"
    clock.once()
    clock.holding.cut_quiet()
    assert clock.holding.hold(clock.now) is None


@settings(max_examples=100)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=40))
def test_it_holds_and_lets_go_only_as_the_limits_say(phases: list[tuple[bool, int]]) -> None:
    clock = _Clockwork(pause_after=5.0, resume_after=20.0)
    seen_for = 0
    gone_for = 0
    held = False
    for present, seconds in phases:
        for _ in range(seconds):
            hold = clock.once(*([GAME] if present else []))
            seen_for = seen_for + 1 if present else 0
            gone_for = 0 if present else gone_for + 1
            if seen_for > 5:
                assert hold is not None
            if hold is not None and not held:
                assert seen_for == 6
            if hold is None and held:
                assert gone_for > 0, "never while it is there"
            if gone_for > 20:
                assert hold is None
            held = hold is not None


def test_durations_are_told_as_people_say_them() -> None:
    told = {0: "0 s", 59.4: "59 s", 60: "1 min", 3599: "1 h", 4800: "1 h 20 min", 7200: "2 h"}
    assert {seconds: duration_text(seconds) for seconds in told} == told
