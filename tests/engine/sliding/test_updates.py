"""Updates beside the walk: their order, and an engine's death, which must reach whoever waits."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

import pytest
import torch
from support.full_runs import (
    BETA1,
    BETA2,
    CPU,
    EPS,
    Recipe,
    batches_of,
    copy_of,
    family,
    same_bits,
    settings_of,
    state_of,
    steps,
    trainer_of,
)
from support.full_walk import broken

from slidepack.engine.sliding.gpu_engine import CHUNK_ELEMENTS, GpuEngine
from slidepack.engine.sliding.slot_pool import SlotPool
from slidepack.engine.sliding.state import StateFormat, TrainState, Unit
from slidepack.engine.sliding.streams import Lane, Streams
from slidepack.engine.sliding.updates import Job, UpdateQueue, Updates
from slidepack.kernels import adamw

LANE = Lane(None)


def _job(priority: int, unit: int = 0) -> Job:
    return Job(
        priority, unit, torch.zeros(1), None, settings_of(1, Recipe()), consumed=lambda _: None
    )


def _later(action: Callable[[], None], seconds: float = 0.05) -> threading.Thread:
    """Do something on another thread, once this one waits."""

    def run() -> None:
        time.sleep(seconds)
        action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_the_lowest_number_is_taken_first() -> None:
    queue = UpdateQueue()
    for priority in (3, -1, 7, 0, 2):
        queue.put(_job(priority))
    taken = [queue.take() for _ in range(3)]
    queue.put(_job(1))
    taken += [queue.take() for _ in range(3)]
    assert [job.priority for job in taken if job is not None] == [-1, 0, 2, 1, 3, 7]


class _Landing:
    """Stands for an event of a card."""

    def __init__(self, landed: bool) -> None:
        self.landed = landed

    def query(self) -> bool:
        return self.landed


def _landing(priority: int, landed: bool) -> Job:
    return replace(_job(priority), landed=cast("torch.cuda.Event", _Landing(landed)))


def test_what_has_landed_goes_before_what_is_more_urgent() -> None:
    queue = UpdateQueue()
    for priority in (27, 26, 25):
        queue.put(_landing(priority, landed=True))
    for priority in (24, 23):
        queue.put(_landing(priority, landed=False))
    taken = [queue.take() for _ in range(5)]
    # Of those on their way, the first that was sent lands first.
    assert [job.priority for job in taken if job is not None] == [25, 26, 27, 24, 23]


def test_take_waits_for_a_job() -> None:
    queue = UpdateQueue()
    thread = _later(lambda: queue.put(_job(5, unit=4)))
    job = queue.take()
    thread.join()
    assert job is not None
    assert job.unit == 4


def test_close_ends_a_thread_that_waits_and_drops_what_is_left() -> None:
    queue = UpdateQueue()
    thread = _later(queue.close)
    assert queue.take() is None
    thread.join()
    queue.put(_job(0))
    assert queue.take() is None


def test_a_unit_is_awaited_until_its_update_is_done() -> None:
    updates = Updates(2)
    assert updates.is_ready(1)
    assert updates.await_unit(1) is None
    updates.begin(1)
    assert not updates.is_ready(1)
    assert updates.is_ready(0)
    thread = _later(lambda: updates.finish(1, None))
    updates.await_unit(1)
    thread.join()
    assert updates.is_ready(1)
    updates.drain()


def test_drain_waits_for_every_unit() -> None:
    updates = Updates(3)
    for unit in range(3):
        updates.begin(unit)

    def finish() -> None:
        for unit in (2, 0, 1):
            updates.finish(unit, None)

    thread = _later(finish)
    updates.drain()
    assert all(updates.is_ready(unit) for unit in range(3))
    thread.join()


@pytest.mark.parametrize(
    ("waiter", "late"),
    [
        *((waiter, False) for waiter in ("await_unit", "drain", "begin", "check", "acquire")),
        *((waiter, True) for waiter in ("await_unit", "drain", "acquire")),
    ],
)
def test_an_engines_error_reaches_whoever_waits(waiter: str, late: bool) -> None:
    updates = Updates(2)
    updates.begin(1)
    # Every slot is taken and never comes back.
    pool = SlotPool([torch.empty(1)], updates.check)
    pool.acquire(LANE)
    waits: dict[str, Callable[[], object]] = {
        "await_unit": lambda: updates.await_unit(1),
        "drain": updates.drain,
        "begin": lambda: updates.begin(0),
        "check": updates.check,
        "acquire": lambda: pool.acquire(LANE),
    }
    error = RuntimeError("the engine died")
    if late:
        thread = _later(lambda: updates.fail(error))
    else:
        updates.fail(error)
    with pytest.raises(RuntimeError) as raised:
        waits[waiter]()
    assert raised.value is error
    if late:
        thread.join()
    # It stays: whatever is asked next raises it too, also of a unit that is done.
    with pytest.raises(RuntimeError, match="the engine died"):
        updates.await_unit(0)


def test_without_an_error_nothing_is_raised() -> None:
    updates = Updates(1)
    updates.check()
    updates.begin(0)
    updates.check()


def test_a_slot_that_comes_back_late_is_waited_for() -> None:
    checks: list[float] = []
    pool = SlotPool([torch.empty(3)], lambda: checks.append(time.monotonic()))
    slot, give_back = pool.acquire(LANE)
    thread = _later(lambda: give_back(None), seconds=0.5)
    again, _ = pool.acquire(LANE)
    thread.join()
    assert again is slot
    assert checks, "looked after the engines while it waited"


def test_slots_are_handed_out_once_each() -> None:
    pool = SlotPool([torch.empty(1) for _ in range(3)], lambda: None)
    taken = [pool.acquire(LANE) for _ in range(3)]
    assert len({slot.data_ptr() for slot, _ in taken}) == 3
    taken[1][1](None)
    assert pool.acquire(LANE)[0] is taken[1][0]


class _EngineDiedError(Exception):
    """What the stand-in raises."""


@pytest.mark.parametrize("clip", [0.0, 1.0], ids=["at-once", "clipped"])
@pytest.mark.parametrize("weights", ["slide", "resident"])
@pytest.mark.parametrize("good_calls", range(6))
def test_an_engine_that_dies_in_a_step_ends_the_walk_with_its_error(
    good_calls: int, weights: Literal["slide", "resident"], clip: float
) -> None:
    model, shape = family("llama", False)
    recipe = Recipe(weights=weights, clip=clip)
    error = _EngineDiedError(good_calls)
    walk = broken(shape, state_of(model, shape, recipe), recipe, error, good_calls)
    try:
        batches = batches_of(shape, 1, recipe)
        with pytest.raises(_EngineDiedError) as raised:
            # There are five units a step; the sixth call is of the second step. With clipping the
            # engine begins when the step is over, so the next one may be first to hear of it.
            for step in (1, 2, 3):
                walk.driver.train_step(batches, settings_of(step, recipe), clip)
        assert raised.value is error
        with pytest.raises(_EngineDiedError):
            walk.updates.drain()
        with pytest.raises(_EngineDiedError):
            walk.driver.evaluate(batches)
    finally:
        walk.optimizer.close()


@pytest.mark.parametrize("clip", [0.0, 1.0], ids=["at-once", "clipped"])
@pytest.mark.parametrize("cpu_share", [0.0, 0.5, 1.0], ids=["gpu", "shared", "cpu"])
def test_a_state_that_no_engine_can_update_ends_the_run(cpu_share: float, clip: float) -> None:
    model, shape = family("llama", True)
    recipe = Recipe(cpu_share=cpu_share, clip=clip, rows="host")
    state = state_of(model, shape, recipe)
    trainer = trainer_of(shape, state, recipe)
    # Neither engine takes a moment of another dtype and size.
    wrong = torch.zeros(3, dtype=torch.float16)
    states = list(state.states)
    for unit in (1, 2):
        states[unit] = replace(states[unit], exp_avg=wrong)
    state.states = tuple(states)
    try:
        with pytest.raises((KeyError, RuntimeError)) as raised:
            steps(trainer, shape, recipe, (1, 2))
        for _ in range(2):
            with pytest.raises(type(raised.value)) as again:
                trainer.updates.drain()
            assert again.value is raised.value
    finally:
        trainer.close()


@pytest.mark.parametrize("moments", [pytest.param("fp32", marks=pytest.mark.full), "int8"])
def test_a_unit_of_several_chunks(moments: Literal["fp32", "int8"]) -> None:
    elements, decayed = CHUNK_ELEMENTS + 3000, CHUNK_ELEMENTS + 1000
    unit = Unit("large", elements, decayed)
    state = TrainState([unit], StateFormat(split=True, moments=moments), pin=False)
    state.write(0, 0, torch.ones(elements))
    grad = torch.linspace(-1.0, 1.0, elements).bfloat16()
    plain, settings = copy_of(state.states[0]), settings_of(1, Recipe())
    updates = Updates(1)
    engine = GpuEngine(state, updates, Streams.of(CPU), CPU)
    try:
        updates.begin(0)
        engine.put(Job(0, 0, grad, None, settings, consumed=lambda _: None))
        updates.drain()
    finally:
        engine.close()
    scalars = settings.scalars_host
    adamw(grad, plain, scalars, beta1=BETA1, beta2=BETA2, eps=EPS, decayed=decayed)
    assert same_bits(state.states[0], plain)


def test_engines_end_without_a_step() -> None:
    model, shape = family("llama", True)
    before = threading.active_count()
    for cpu_share in (0.0, 0.5, 1.0):
        recipe = Recipe(cpu_share=cpu_share)
        trainer = trainer_of(shape, state_of(model, shape, recipe), recipe)
        assert threading.active_count() > before
        trainer.close()
        assert threading.active_count() == before
    assert recipe.device == CPU
