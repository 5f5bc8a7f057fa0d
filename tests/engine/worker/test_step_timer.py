"""Steps are timed once they are alike."""

from slidepack.engine.worker.step_timer import StepTimer


def _timer() -> tuple[StepTimer, list[tuple[int, int, float, int]]]:
    told: list[tuple[int, int, float, int]] = []
    return StepTimer(lambda *report: told.append(report)), told


def test_the_first_report_comes_early_and_leaves_the_warm_up_out() -> None:
    timer, told = _timer()
    for step in range(3):
        timer.record(["a", "b"], 100, 50.0 - step)
    for step in range(9):
        timer.record(["b", "a"], 100 + step, 1.0)
    assert told == []
    timer.record(["a", "b"], 109, 9.0)
    assert told == [(104, 2, 1.0, 10)], "a mean of tokens, a median of seconds"


def test_later_reports_are_rare() -> None:
    timer, told = _timer()
    for _ in range(3 + 10 + 250):
        timer.record(["a"], 8, 2.0)
    assert [steps for _, _, _, steps in told] == [10, 100, 100]


def test_who_comes_or_leaves_begins_anew() -> None:
    timer, told = _timer()
    for number in range(40):
        timer.record(["a"] if number // 12 % 2 else ["a", "b"], 8, 2.0)
    assert told == [], "never ten steps alike after a warm-up of three"
