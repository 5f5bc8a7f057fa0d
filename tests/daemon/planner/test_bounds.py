import itertools

import pytest
from support.plan_problems import NOW, base, device, full, lane

from slidepack.daemon.planner.bounds import lower_bound
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.schedule import Strategy
from slidepack.daemon.planner.simulate import simulate


def _bound(instance: Instance) -> float:
    return lower_bound(instance, range(len(instance.tasks))).seconds


def test_the_longest_chain_is_a_bound() -> None:
    tasks = [lane("a"), lane("b", after=("a",), steps=50), lane("c", steps=20)]
    found = lower_bound(Instance(tasks, [device()], (), NOW), range(3))
    assert found.kind == "chain"
    assert found.seconds == pytest.approx(15.0)


def test_tokens_are_work_whoever_shares_the_pass() -> None:
    tasks = [lane(f"t{i}", tokens=1000) for i in range(6)]
    instance = Instance(tasks, [device(), device("cuda:1")], (), NOW)
    assert _bound(instance) == pytest.approx(30.0)


def test_steps_below_the_floor_count_where_few_lanes_are_allowed() -> None:
    tasks = [lane(f"t{i}") for i in range(6)]
    assert _bound(Instance(tasks, [device(max_lanes=2)], (), NOW)) == pytest.approx(30.0)


def test_prices_find_which_device_is_worth_more() -> None:
    slow = device("slow", bases={"b": base(cost=base().cost.scaled(3.0))})
    tasks = [lane(f"t{i}", tokens=1000) for i in range(40)]
    found = _bound(Instance(tasks, [device(), slow], (), NOW))
    # 40 times 10 s, on speeds of 1 and 1/3.
    assert found == pytest.approx(300.0, rel=0.01)


def test_no_order_at_all_is_below_the_bound() -> None:
    tasks = [
        *(
            lane(f"t{i}", tokens=400 * (i + 1), steps=30 * (4 - i), params=i * 60 << 20)
            for i in range(4)
        ),
        full("f", 0.3),
    ]
    instance = Instance(tasks, [device(max_lanes=3)], (), NOW)
    best = min(
        simulate(instance, Strategy(order=order, max_lanes=lanes)).makespan
        for order in itertools.permutations(range(5))
        for lanes in (1, 2, 3)
    )
    assert 0.8 * best < _bound(instance) <= best + 1e-9
