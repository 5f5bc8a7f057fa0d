"""Who updates a layer follows from what the engines have to do, and never changes a result."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from slidepack.engine.bench_slide.shapes import TINY
from slidepack.engine.bench_slide.steps import Stepper, random_batches
from slidepack.engine.bench_slide.weights import random_state
from slidepack.engine.sliding.build import FullSetup, FullTrainer, build_full
from slidepack.engine.sliding.gpu_engine import GpuEngine, _Span
from slidepack.engine.sliding.sharing import BalancedSharing, EngineName, FixedSharing, assign
from slidepack.engine.sliding.state import StateFormat, TrainState
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.updates import Updates

CPU = torch.device("cpu")
LAYERS, UNITS = TINY.num_layers, TINY.num_layers + 2
LAYER = TINY.layer_params


class Scripted:
    """An engine whose work is made up."""

    def __init__(self) -> None:
        self.worked = (0.0, 0)

    def work(self, elements: int, seconds: float) -> None:
        """Do so much in this time."""
        before_seconds, before = self.worked
        self.worked = (before_seconds + seconds, before + elements)


class Machine:
    """Two engines of known speeds, fed by a sharing, in made-up time."""

    def __init__(self, cpu: float, gpu: float) -> None:
        self.speeds: dict[EngineName, float] = {"cpu": cpu, "gpu": gpu}
        self.engines: dict[EngineName, Scripted] = {"cpu": Scripted(), "gpu": Scripted()}
        self.queued: dict[EngineName, list[int]] = {"cpu": [], "gpu": []}
        self.ahead: dict[EngineName, float] = {"cpu": 0.0, "gpu": 0.0}
        """Seconds spent on the unit that is worked on."""
        self.done: dict[EngineName, int] = {"cpu": 0, "gpu": 0}
        self.sharing = BalancedSharing(self.engines, LAYERS)

    def give(self, unit: int, elements: int) -> EngineName:
        """Let the sharing pick, and queue the work there."""
        name = self.sharing.pick(unit, elements)
        self.queued[name].append(elements)
        return name

    def run(self, seconds: float) -> None:
        """Let both engines work; units are counted when they are done."""
        for name, queue in self.queued.items():
            self.ahead[name] += seconds
            while queue and queue[0] / self.speeds[name] <= self.ahead[name]:
                elements = queue.pop(0)
                self.ahead[name] -= elements / self.speeds[name]
                self.engines[name].work(elements, elements / self.speeds[name])
                self.done[name] += 1
            if not queue:
                self.ahead[name] = 0.0

    def drain(self) -> None:
        """Let both finish."""
        self.run(1e9)


@pytest.mark.parametrize(("cpu", "gpu"), [(1.0, 1.0), (3.0, 1.0), (1.0, 3.0), (1.0, 20.0)])
def test_each_engine_gets_what_its_speed_allows(cpu: float, gpu: float) -> None:
    machine = Machine(cpu, gpu)
    for _ in range(200):
        machine.give(0, 1000)
        # A little more than both can do: the backlog grows as the walk runs ahead.
        machine.run(950 / (cpu + gpu))
    # Until both have been measured they are held to be equal.
    assert machine.done["cpu"] / sum(machine.done.values()) == pytest.approx(
        cpu / (cpu + gpu), abs=0.06
    )
    left = {name: sum(queue) / machine.speeds[name] for name, queue in machine.queued.items()}
    assert abs(left["cpu"] - left["gpu"]) <= 1000 / min(cpu, gpu)


def test_a_speed_that_changes_is_followed() -> None:
    machine = Machine(1.0, 1.0)
    for _ in range(100):
        machine.give(0, 1000)
        machine.run(500)
    machine.drain()
    machine.speeds["cpu"] = 0.1
    for _ in range(60):
        machine.give(0, 1000)
        machine.run(900)
    machine.drain()
    before = dict(machine.done)
    for _ in range(60):
        machine.give(0, 1000)
        machine.run(900)
    assert machine.done["cpu"] - before["cpu"] < 0.2 * (machine.done["gpu"] - before["gpu"])


def test_an_idle_engine_is_picked_before_a_faster_one_with_work() -> None:
    machine = Machine(1.0, 2.0)
    for _ in range(20):
        machine.give(0, 1000)
        machine.run(500)
    machine.drain()
    # Twice as fast, it gets two of three.
    assert machine.give(0, 1000) == "gpu"
    assert sorted(machine.give(0, 1100) for _ in range(2)) == ["cpu", "gpu"]


def test_the_first_update_of_an_engine_is_not_measured() -> None:
    machine = Machine(1.0, 1.0)
    machine.give(0, 1000)
    machine.give(0, 1000)
    # A kernel is compiled.
    machine.engines["gpu"].work(1000, 60_000.0)
    machine.engines["cpu"].work(1000, 1000.0)
    machine.queued = {"cpu": [], "gpu": []}
    picked = []
    for _ in range(8):
        picked.append(machine.give(0, 1000))
        machine.run(500)
    assert picked.count("gpu") >= 3


def test_the_ends_are_the_cards_and_what_is_booked_counts() -> None:
    machine = Machine(1.0, 1.0)
    assert machine.sharing.pick(LAYERS, 10_000) == "gpu"
    assert [machine.give(0, 1000) for _ in range(5)] == ["cpu"] * 5
    machine.sharing.book("cpu", 20_000)
    assert [machine.give(0, 1000) for _ in range(5)] == ["gpu"] * 5


@pytest.mark.parametrize(
    ("share", "names"),
    [
        (0.0, ("gpu",) * 6),
        (0.5, ("gpu", "cpu", "cpu", "gpu", "gpu", "gpu")),
        (1.0, ("cpu",) * 6),
    ],
)
def test_a_fixed_share_is_spread_over_the_layers(share: float, names: tuple[str, ...]) -> None:
    assert assign(4, 6, share) == names
    sharing = FixedSharing(assign(4, 6, share))
    assert tuple(sharing.pick(unit, 1) for unit in range(6)) == names


@pytest.fixture
def trainers(tmp_path: Path) -> Iterator[list[FullTrainer]]:
    built: list[FullTrainer] = []
    yield built
    for trainer in built:
        trainer.close()


def _build(state: TrainState, cache: Path, share: float | None, *, clip: bool) -> FullTrainer:
    setup = FullSetup(
        device=CPU,
        weights="slide",
        weight_slots=2,
        grad_slots=2,
        host_grad_slots=2,
        cpu_share=share,
        rows="device",
        max_tokens=48,
        max_micro_tokens=24,
        accumulate=True,
        clip=clip,
        cpu_threads=1,
        cache=cache,
    )
    return build_full(TINY, state, setup)


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_who_updates_never_changes_a_result(
    clip: float, tmp_path: Path, trainers: list[FullTrainer]
) -> None:
    form = StateFormat(split=True, moments="fp32")
    batches = random_batches(TINY, CPU, torch.bfloat16, batch=4, seq=12, micro_tokens=24)
    outcomes = []
    for share in (0.0, None):
        state = random_state(TINY, form, CPU, None)
        trainer = _build(state, tmp_path, share, clip=clip > 0.0)
        trainers.append(trainer)
        stepper = Stepper(trainer.driver, batches, CPU, clip, frozen=False)
        losses = [stepper.step() for _ in range(6)]
        trainer.updates.drain()
        outcomes.append((losses, state))
    (losses, still), (free_losses, free) = outcomes
    assert losses == free_losses
    assert losses[0] != losses[-1]
    for one, other in zip(still.states, free.states, strict=True):
        for name in ("master", "remainder", "exp_avg", "exp_avg_sq"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


class Moment:
    """An event whose time is known, in milliseconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: "Moment") -> float:
        return later.at - self.at


def test_time_in_which_two_units_overlap_on_the_card_counts_once() -> None:
    state = random_state(TINY, StateFormat(split=False, moments="fp32"), CPU, None)
    engine = GpuEngine(state, Updates(UNITS), Streams.of(CPU), CPU)
    engine.close()
    # The second begins within the first; the third after a pause.
    for elements, begin, end in ((10, 0.0, 100.0), (20, 70.0, 150.0), (30, 400.0, 450.0)):
        moments: Any = Moment(begin), Moment(end)
        engine._await(_Span(elements, *moments))
    assert engine.busy_seconds == pytest.approx(0.2)
    assert engine.elements == 60


def test_engines_count_what_they_do(tmp_path: Path, trainers: list[FullTrainer]) -> None:
    form = StateFormat(split=False, moments="fp32")
    batches = random_batches(TINY, CPU, torch.float32, batch=4, seq=12, micro_tokens=24)
    trainer = _build(random_state(TINY, form, CPU, None), tmp_path, 0.5, clip=False)
    trainers.append(trainer)
    stepper = Stepper(trainer.driver, batches, CPU, 0.0, frozen=False)
    for _ in range(3):
        stepper.step()
    trainer.updates.drain()
    engines = trainer.optimizer._engines
    ends = TINY.total_params - LAYERS * LAYER
    assert engines["cpu"].elements == 3 * 2 * LAYER
    assert engines["gpu"].elements == 3 * (2 * LAYER + ends)
    assert min(engine.busy_seconds for engine in engines.values()) > 0.0
