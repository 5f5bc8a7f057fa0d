"""The bound over all packs: below every plan that there is, and near the best one."""

import itertools
from collections.abc import Iterator, Sequence
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plan_problems import MB, NOW, base, bases, device, devices, full, lane, queues

from slidepack.daemon.planner.bounds import lower_bound
from slidepack.daemon.planner.cost import StepCost
from slidepack.daemon.planner.generation import Generated, generate
from slidepack.daemon.planner.ilp import HighsSolver
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.packing import Layout, packs_of
from slidepack.daemon.planner.schedule import Recompute, Schedule, Strategy
from slidepack.daemon.planner.simulate import simulate
from slidepack.daemon.planner.tasks import Device, PassBytes, Task

SOLVER = HighsSolver()
SLACK = 1.0 + 1e-6
"""For sums of many floats."""
_RECOMPUTE: tuple[Recompute, ...] = ("never", "for tokens", "freely")


def _generated(
    tasks: Sequence[Task], on: Sequence[Device], degrees: tuple[int, ...] = (1,)
) -> Generated:
    instance = Instance(tasks, on, (), NOW, degrees)
    layout = Layout(instance, range(len(tasks)))
    return generate(layout, SOLVER, (), seconds_left=lambda: inf)


def _all_plans(instance: Instance) -> Iterator[Schedule]:
    """Yield every assignment in every order, with packs of up to one lane, two, three or any."""
    count = len(instance.tasks)
    for seat_of in itertools.product(*instance.fitting):
        for order in itertools.permutations(range(count)):
            for lanes in (0, 1, 2, 3):
                strategy = Strategy(order=order, seat_of=seat_of, max_lanes=lanes)
                found = simulate(instance, strategy)
                assert len(found.placements) == count
                yield found


@st.composite
def tiny(draw: st.DrawFn) -> tuple[list[Task], list[Device]]:
    """Few lanes of one base on one device or two, with all that a pack's step depends on."""
    on = [
        device(f"d{number}", kind="", bases={"b": draw(bases())}, max_lanes=draw(_LANES))
        for number in range(draw(st.integers(1, 2)))
    ]
    tasks = [
        lane(
            f"t{number}",
            steps=draw(st.sampled_from((1, 60, 100))),
            tokens=draw(st.sampled_from((30, 480, 3000))),
            params=draw(st.sampled_from((1, 20))) * 4_000_000,
            most_tokens=draw(st.sampled_from((0, 700, 2048))),
            longest=draw(st.sampled_from((64, 300))),
        )
        for number in range(draw(st.integers(1, 4)))
    ]
    fits = Instance(tasks, on, (), NOW).fitting
    return [task for task, seats in zip(tasks, fits, strict=True) if seats], on


_LANES = st.sampled_from((0, 0, 2))


@settings(max_examples=60)
@given(problem=tiny())
def test_no_plan_of_all_there_are_is_below_the_bound(
    problem: tuple[list[Task], list[Device]],
) -> None:
    tasks, on = problem
    if tasks:
        best = min(plan.makespan for plan in _all_plans(Instance(tasks, on, (), NOW)))
        assert _generated(tasks, on).bound <= best * SLACK


@settings(max_examples=15)
@given(data=st.data())
def test_no_plan_of_any_queue_is_below_the_bound(data: st.DataObject) -> None:
    on = data.draw(devices())
    queue = data.draw(queues(tuple(one.key for one in on)))
    degrees = data.draw(st.sampled_from(((1,), (1, 2), (1, 2, 4))))
    fitting = Instance(queue, on, (), NOW, degrees).fitting
    tasks = [task for task, seats in zip(queue, fitting, strict=True) if seats]
    instance = Instance(tasks, on, (), NOW, degrees)
    bound = _generated(tasks, on, degrees).bound if tasks else 0.0
    for _ in range(12):
        plan = simulate(instance, data.draw(_strategies(len(tasks), len(instance.seats), degrees)))
        if len(plan.placements) == len(tasks):
            assert bound <= plan.makespan * SLACK


@st.composite
def _strategies(draw: st.DrawFn, tasks: int, seats: int, degrees: tuple[int, ...]) -> Strategy:
    return Strategy(
        order=tuple(draw(st.permutations(range(tasks)))),
        cap_factors=(draw(st.sampled_from((0.5, 2.0, 16.0))),) * seats,
        max_lanes=draw(st.sampled_from((0, 0, 1, 2, 5))),
        recompute=(draw(st.sampled_from(_RECOMPUTE)),) * seats,
        degree=draw(st.sampled_from(degrees)),
    )


def test_the_bound_knows_which_lanes_fit_beside_each_other() -> None:
    # Each takes three fifths of the room: two never share a step, though half of each would.
    room = base(fixed_bytes=1000 * MB, recompute=PassBytes(per_token=0))
    params = 1800 * MB // 16
    tasks = [lane(f"t{number}", params=params, tokens=10) for number in range(4)]
    on = [device(bases={"b": room})]
    found = _generated(tasks, on)
    assert found.bound == pytest.approx(40.0, rel=1e-3)
    assert lower_bound(Instance(tasks, on, (), NOW), range(4)).seconds < 30.0


def test_the_bound_knows_that_two_lanes_need_a_larger_pass_to_keep_activations() -> None:
    # One lane keeps its 500 tokens; two would have to keep 1,000, for which there is no room.
    keeps = base(
        keep=PassBytes(per_token=4 * MB),
        keep_tokens=1000,
        recompute_slowdown=2.0,
    )
    tasks = [lane(f"t{n}", tokens=500, longest=100, params=0) for n in range(3)]
    on = [device(bases={"b": keeps})]
    instance = Instance(tasks, on, (), NOW)
    best = min(plan.makespan for plan in _all_plans(instance))
    assert best == pytest.approx(30.0)
    assert _generated(tasks, on).bound == pytest.approx(best, rel=1e-3)


def test_the_bound_knows_that_small_lanes_keep_their_activations_together() -> None:
    # There is room to keep 750 tokens, not the 1,000 of a large pass; two lanes have 600.
    keeps = base(
        cost=StepCost(floor_seconds=0.0, token_seconds=1e-4, fixed_tokens=500.0),
        keep=PassBytes(per_token=4 * MB),
        keep_tokens=1000,
        recompute_slowdown=2.0,
    )
    tasks = [lane(f"t{n}", tokens=300, longest=100, params=0) for n in range(2)]
    on = [device(bases={"b": keeps})]
    best = min(plan.makespan for plan in _all_plans(Instance(tasks, on, (), NOW)))
    assert best == pytest.approx(11.0)
    assert _generated(tasks, on).bound == pytest.approx(best, rel=1e-3)


def test_equal_lanes_that_fill_a_device_are_bound_to_the_second() -> None:
    tasks = [lane(f"t{number}", tokens=1000) for number in range(6)]
    assert _generated(tasks, [device(max_lanes=3)]).bound == pytest.approx(60.0, rel=1e-3)
    slow = device("slow", bases={"b": base(cost=base().cost.scaled(2.0))})
    assert _generated(tasks, [device(), slow]).bound == pytest.approx(40.0, rel=1e-3)


def test_equal_devices_are_one_place() -> None:
    on = [device(f"d{number}") for number in range(4)]
    layout = Layout(
        Instance([lane("a"), lane("b"), full("f", 1.0, ("d0",))], on, (), NOW), range(3)
    )
    assert [place.seats for place in layout.places] == [(0,), (1, 2, 3)]
    assert [kind.tasks for kind in layout.kinds] == [(0, 1), (2,)]


def test_what_a_lane_takes_once_is_part_of_its_steps() -> None:
    once = base(lane_seconds_once=5.0)
    tasks = [lane("a", tokens=1000), lane("b", tokens=1000)]
    found = _generated(tasks, [device(bases={"b": once})])
    assert found.bound == pytest.approx(2 * 10.0 + 2 * 5.0, rel=1e-3)


def test_the_packs_of_a_schedule_are_those_that_it_plays() -> None:
    tasks = [lane("a", steps=50), lane("b", steps=100), lane("c", steps=100, tokens=2000)]
    instance = Instance(tasks, [device()], (), NOW)
    layout = Layout(instance, range(3))
    played = packs_of(layout, simulate(instance, Strategy(order=(0, 1, 2), max_lanes=2)))
    kinds = {kind.tasks[0]: number for number, kind in enumerate(layout.kinds)}
    assert [dict(pack.counts) for pack in played] == [
        {kinds[0]: 1, kinds[1]: 1},
        {kinds[1]: 1, kinds[2]: 1},
        {kinds[2]: 1},
    ]


def test_a_bound_that_is_cut_short_is_still_one() -> None:
    tasks = [
        lane(f"t{n}", tokens=100 * (n + 1), steps=10 * (30 - n), params=n * 8 << 20)
        for n in range(20)
    ]
    instance = Instance(tasks, [device(), device("z", max_lanes=2)], (), NOW)
    layout = Layout(instance, range(20))
    whole = generate(layout, SOLVER, (), seconds_left=lambda: inf)
    for asked in (0, 1, 5, 20, 60):
        left = iter([1.0] * asked)
        cut = generate(layout, SOLVER, (), seconds_left=lambda left=left: next(left, 0.0))  # type: ignore[misc]
        assert 0.0 <= cut.bound <= whole.seconds * SLACK
        assert cut.packs
    assert whole.bound >= 0.999 * whole.seconds
