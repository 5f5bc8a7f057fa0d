"""The share of the CPU's optimizer follows what was measured, and never changes a result."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from slidepack.engine.bench_slide.shapes import TINY
from slidepack.engine.bench_slide.steps import Stepper, random_batches
from slidepack.engine.bench_slide.weights import random_state
from slidepack.engine.sliding.auto_share import AutoShare, balanced_share
from slidepack.engine.sliding.build import FullSetup, FullTrainer, assign, build_full
from slidepack.engine.sliding.gpu_engine import GpuEngine, _Span
from slidepack.engine.sliding.optimizer import AsyncOptimizer
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

    def work(self, elements: int, rate: float) -> None:
        """Do so much at this rate."""
        seconds, before = self.worked
        self.worked = (seconds + elements / rate, before + elements)


@pytest.mark.parametrize("ends", [0, 400])
@pytest.mark.parametrize(("cpu_rate", "gpu_rate"), [(3.0, 5.0), (4.0, 4.0), (5.0, 3.0)])
def test_both_engines_finish_together(cpu_rate: float, gpu_rate: float, ends: int) -> None:
    share = balanced_share(cpu_rate, gpu_rate, layers=1000, ends=ends)
    on_cpu = share * 1000
    assert on_cpu / cpu_rate == pytest.approx((1000 - on_cpu + ends) / gpu_rate)


def test_ends_that_keep_the_card_busy_leave_every_layer_to_the_cpu() -> None:
    assert balanced_share(4.0, 1.0, layers=1000, ends=900) == 1.0
    assert balanced_share(0.0, 1.0, layers=1000, ends=900) == 0.0


def _optimizer(share: float = 0.5) -> AsyncOptimizer:
    """Return an optimizer that only keeps an assignment; no engine gets work."""
    return AsyncOptimizer(
        updates=Updates(UNITS),
        streams=Streams.of(CPU),
        engines={"cpu": None, "gpu": None},  # type: ignore[dict-item]  # none is ever asked
        assignment=assign(LAYERS, UNITS, share),
        host_slots=None,
        waiting=None,
    )


def _auto(optimizer: AsyncOptimizer) -> tuple[AutoShare, Scripted, Scripted]:
    cpu, gpu = Scripted(), Scripted()
    return AutoShare(optimizer, {"cpu": cpu, "gpu": gpu}, TINY), cpu, gpu


def test_layers_move_to_the_faster_engine_and_the_share_settles() -> None:
    optimizer = _optimizer()
    auto, cpu, gpu = _auto(optimizer)
    assert auto.share == 0.5
    steps = 0
    while not auto.settled:
        cpu.work(LAYER, 1.0)
        gpu.work(LAYER, 9.0)
        auto.after_step()
        steps += 1
    # A tenth of four layers and the ends is 0.45 layers, which rounds to none.
    assert auto.share == 0.0
    assert auto.changes == 1
    assert steps == 1 + 1 + 3
    assert optimizer.assignment == ("gpu",) * UNITS


def test_the_ends_stay_on_the_card_whatever_the_share() -> None:
    optimizer = _optimizer()
    auto, cpu, gpu = _auto(optimizer)
    for _ in range(2):
        cpu.work(LAYER, 1000.0)
        gpu.work(LAYER, 1.0)
        auto.after_step()
    assert optimizer.assignment == ("cpu",) * LAYERS + ("gpu", "gpu")
    assert auto.share == 1.0


def test_the_first_step_is_not_measured() -> None:
    auto, cpu, gpu = _auto(_optimizer())
    cpu.work(LAYER, 1e-6)
    gpu.work(LAYER, 1e-9)
    auto.after_step()
    assert (auto.share, auto.changes) == (0.5, 0)
    cpu.work(LAYER, 1.0)
    gpu.work(2 * LAYER, 9.0)
    auto.after_step()
    assert auto.share == 0.0


def test_an_engine_without_work_keeps_its_rate() -> None:
    auto, cpu, gpu = _auto(_optimizer())
    auto.after_step()
    cpu.work(LAYER, 1.0)
    gpu.work(LAYER, 9.0)
    auto.after_step()
    assert auto.share == 0.0
    gpu.work(LAYER, 1.0)
    auto.after_step()
    assert auto.share > 0.0


def test_rates_that_never_agree_change_it_six_times_and_no_more() -> None:
    auto, cpu, gpu = _auto(_optimizer())
    auto.after_step()
    shares = []
    for rate in itertools.islice(itertools.cycle((9.0, 0.1)), 20):
        cpu.work(LAYER, 1.0)
        gpu.work(LAYER, rate)
        auto.after_step()
        shares.append(auto.share)
    assert auto.changes == 6
    assert auto.settled
    assert len(set(shares[5:])) == 1


def test_one_engine_has_nothing_to_share() -> None:
    optimizer = _optimizer(0.0)
    auto = AutoShare(optimizer, {"gpu": Scripted()}, TINY)
    assert auto.settled
    auto.after_step()
    assert optimizer.assignment == ("gpu",) * UNITS


@pytest.fixture
def trainers(tmp_path: Path) -> Iterator[list[FullTrainer]]:
    built: list[FullTrainer] = []
    yield built
    for trainer in built:
        trainer.close()


def _build(state: TrainState, cache: Path, share: float, *, clip: bool) -> FullTrainer:
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
def test_changes_of_the_share_never_change_a_result(
    clip: float, tmp_path: Path, trainers: list[FullTrainer]
) -> None:
    form = StateFormat(split=True, moments="fp32")
    batches = random_batches(TINY, CPU, torch.bfloat16, batch=4, seq=12, micro_tokens=24)
    outcomes = []
    for moving in (False, True):
        state = random_state(TINY, form, CPU, None)
        trainer = _build(state, tmp_path, 0.5 if moving else 0.0, clip=clip > 0.0)
        trainers.append(trainer)
        stepper = Stepper(trainer.driver, batches, CPU, clip, frozen=False)
        auto, cpu, gpu = _auto(trainer.optimizer)
        shares, losses = set(), []
        for rate in (1.0, 0.1, 9.0, 1.0, 0.01, 9.0):
            losses.append(stepper.step())
            if moving:
                cpu.work(LAYER, 1.0)
                gpu.work(LAYER, rate)
                auto.after_step()
                shares.add(auto.share)
        trainer.updates.drain()
        assert len(shares) > 2 or not moving
        outcomes.append((losses, state))
    (losses, still), (moved_losses, moved) = outcomes
    assert losses == moved_losses
    assert losses[0] != losses[-1]
    for one, other in zip(still.states, moved.states, strict=True):
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
