"""When a run has nothing to gain any more."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import Warned, decode_event
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.watchdog import Vitals, Watchdog, advice

GUESS: Final = math.log(1000)
BETTER, WORSE = GUESS - 0.01, GUESS + 0.01
BAD: Final = math.nan


class Run:
    """A watchdog and the steps that it has seen."""

    def __init__(self, log: Path, *, spoils: bool = False) -> None:
        self.log = log
        self.events = EventLog(log)
        self.dog = Watchdog(6e-3, 1000, self.events, spoils=spoils)
        self._spoils = spoils
        self._step = 0

    def see(self, losses: Iterable[float], norm: float = 1.0) -> None:
        """Show it some more steps."""
        for loss in losses:
            self._step += 1
            self.dog.look(self._step, loss, norm, 7)

    def resume(self) -> None:
        """Go on with what a checkpoint keeps."""
        kept = msgspec.json.decode(msgspec.json.encode(self.dog.vitals), type=Vitals)
        self.dog = Watchdog(6e-3, 1000, self.events, spoils=self._spoils, vitals=kept)

    def diverges_at(self, losses: Iterable[float], norm: float = 1.0) -> SlidepackError:
        """Show it some more steps; only the last of them is one too many."""
        *fine, last = losses
        self.see(fine, norm)
        with pytest.raises(SlidepackError) as caught:
            self.see([last], norm)
        assert caught.value.report.code == "RUN-DIVERGED"
        fix = "Go on from the checkpoint of step 7 with a learning rate below 2.0e-03."
        assert caught.value.report.fix == fix
        assert "the good checkpoint of step 7 is kept" in caught.value.report.why
        return caught.value

    @property
    def warnings(self) -> list[Warned]:
        """What it warned of."""
        found = [decode_event(line) for line in self.log.read_bytes().splitlines()]
        return [event for event in found if isinstance(event, Warned)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path / "events.jsonl")
    with made.events:
        yield made


@pytest.fixture
def spoilt(tmp_path: Path) -> Iterator[Run]:
    """A run whose bad steps change weights."""
    made = Run(tmp_path / "events.jsonl", spoils=True)
    with made.events:
        yield made


@pytest.mark.parametrize(
    ("loss", "norm"), [(BAD, 1.0), (math.inf, 1.0), (3.0, BAD), (3.0, math.inf), (BAD, BAD)]
)
def test_three_bad_steps_in_a_row_end_a_run(run: Run, loss: float, norm: float) -> None:
    run.see([3.0, 3.0])
    error = run.diverges_at([loss] * 3, norm)
    assert "no number since step 3" in error.report.what
    assert "those steps changed nothing" in error.report.why
    assert f"loss {loss}, gradient norm {norm}" in error.report.why


def test_a_good_step_in_between_forgives_the_bad_ones(run: Run) -> None:
    run.see([BAD, BAD, 3.0] * 10)
    error = run.diverges_at([BAD] * 3)
    assert "no number since step 31" in error.report.what


def test_one_bad_step_that_spoils_the_weights_ends_a_run(spoilt: Run) -> None:
    spoilt.see([3.0] * 4)
    error = spoilt.diverges_at([BAD])
    assert "no number since step 5" in error.report.what
    assert "the weights are spoilt" in error.report.why


@pytest.mark.parametrize(
    ("losses", "warned"),
    [
        ([GUESS + 2.01], 1),
        ([GUESS + 2.01] * 50, 1),
        ([GUESS + 1.99, GUESS + 2.01], 0),
        ([BAD, GUESS + 2.01], 0),
    ],
    ids=["first", "always", "second", "after a bad one"],
)
def test_only_a_high_first_loss_is_warned_of(run: Run, losses: list[float], warned: int) -> None:
    run.see(losses)
    assert [event.code for event in run.warnings] == ["RUN-HIGH-LOSS"] * warned
    assert all(f"The first loss is {GUESS + 2.01:.2f}" in event.message for event in run.warnings)


def test_twenty_steps_worse_than_guessing_end_a_run_that_was_better(run: Run) -> None:
    run.see([WORSE] * 30 + [BETTER])
    error = run.diverges_at([WORSE] * 20)
    assert "worse than guessing since step 32" in error.report.what
    assert f"guessing among all tokens is {GUESS:.2f}" in error.report.why


def test_a_step_as_good_as_guessing_starts_the_count_again(run: Run) -> None:
    run.see([BETTER])
    for good in (BETTER, GUESS):
        run.see([WORSE] * 19 + [good])
    run.diverges_at([WORSE] * 20)


def test_bad_steps_neither_count_as_lost_nor_start_that_count_again(run: Run) -> None:
    run.see([BETTER] + [WORSE, BAD] * 19)
    run.diverges_at([WORSE])


def test_a_run_that_was_never_better_than_guessing_goes_on(run: Run) -> None:
    run.see([WORSE] * 500 + [GUESS] + [WORSE] * 500)


def test_a_first_loss_of_zero_is_warned_of(run: Run) -> None:
    run.see([0.0, 0.0])
    assert [event.code for event in run.warnings] == ["RUN-ZERO-LOSS"]


def test_without_a_good_checkpoint_there_is_none_to_go_on_from(spoilt: Run) -> None:
    with pytest.raises(SlidepackError, match="no good checkpoint was made before") as caught:
        spoilt.dog.look(1, BAD, 1.0, None)
    assert caught.value.report.fix == "Try again with a learning rate below 2.0e-03."
    assert advice(6e-3, 0) == (
        "Go on from the checkpoint of step 0 with a learning rate below 2.0e-03."
    )


@pytest.mark.parametrize("resumed", [False, True])
def test_an_exploding_gradient_that_makes_the_loss_worse_ends_a_run(
    run: Run, *, resumed: bool
) -> None:
    """Guessing is at 6.9: this loss is better than that, and still lost."""
    run.see([3.0, 2.0] * 20)
    run.see([6.0] * 15, norm=21.0)
    if resumed:
        run.resume()
    error = run.diverges_at([6.0] * 5, norm=21.0)
    assert "The gradient explodes since step 41" in error.report.what
    assert "its norm is 21, usual was 1; the loss has risen to 6.00" in error.report.why


@pytest.mark.parametrize("norm", [21.0, 1e9])
def test_a_gradient_that_grows_while_the_loss_does_not_is_fine(run: Run, norm: float) -> None:
    run.see([3.0, 2.0] * 20)
    run.see([2.9] * 500, norm=norm)
    assert run.dog.is_healthy, "the larger norm is the usual one by now"


def test_spikes_that_pass_are_fine(run: Run) -> None:
    for _ in range(10):
        run.see([2.0] * 10)
        run.see([6.0] * 19, norm=1e6)
    run.see([2.0] * 5)
    assert run.dog.is_healthy


@pytest.mark.parametrize(
    ("losses", "norm"),
    [([BAD], 1.0), ([2.0], math.inf), ([2.0], 21.0), ([3.6], 1.0), ([GUESS + 0.1], 1.0)],
    ids=["no number", "no norm", "norm", "loss", "worse than guessing"],
)
def test_a_checkpoint_is_good_five_steps_after_what_was_unusual(
    run: Run, losses: list[float], norm: float
) -> None:
    run.see([3.0, 2.0] * 10)
    assert run.dog.is_healthy
    run.see(losses, norm)
    for _ in range(5):
        assert not run.dog.is_healthy
        run.resume()
        run.see([2.5])
    assert run.dog.is_healthy


def test_a_loss_that_stays_out_of_its_range_never_becomes_good(run: Run) -> None:
    run.see([3.0, 2.0] * 10)
    run.see([5.0] * 300)
    assert not run.dog.is_healthy
    run.see([2.0] * 5)
    assert run.dog.is_healthy


def test_a_falling_loss_and_norm_are_healthy_from_the_first_step(run: Run) -> None:
    assert run.dog.is_healthy
    for step in range(200):
        run.see([4.0 * 0.98**step], norm=3.0 * 0.97**step)
        assert run.dog.is_healthy


def test_a_run_around_guessing_is_doubtful_after_five_steps_above(run: Run) -> None:
    run.see([WORSE, BETTER] * 10)
    run.see([WORSE] * 4)
    assert run.dog.is_healthy
    run.see([WORSE])
    assert not run.dog.is_healthy
    run.see([BETTER])
    assert run.dog.is_healthy
