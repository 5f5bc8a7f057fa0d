"""Promises, priorities, and the most value by the morning: what they say is what happens."""

import itertools
from math import inf

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plan_problems import NOW, device, lane

from slidepack.daemon.planner.answer import Options, Plan
from slidepack.daemon.planner.assignment import assign
from slidepack.daemon.planner.ilp import HighsSolver
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planner.schedule import Schedule, Strategy
from slidepack.daemon.planner.simulate import simulate
from slidepack.daemon.planner.tasks import Device, Task, Window

SOLVER = HighsSolver()


@st.composite
def nights(draw: st.DrawFn) -> tuple[list[Task], list[Device], float]:
    """A few jobs of different worth, and seconds until the morning that are not enough for all."""
    on = [
        device(f"d{number}", kind="", max_lanes=draw(st.sampled_from((1, 2))))
        for number in range(draw(st.integers(1, 2)))
    ]
    tasks = [
        lane(
            f"t{number}",
            steps=draw(st.sampled_from((50, 100, 300))),
            tokens=draw(st.sampled_from((100, 800, 3000))),
            value=draw(st.sampled_from((1.0, 2.0, 5.0))),
        )
        for number in range(draw(st.integers(2, 4)))
    ]
    return tasks, on, draw(st.sampled_from((12.0, 31.0, 60.0)))


def _value(tasks: list[Task], ends: dict[str, float], until: float) -> float:
    return sum(task.value for task in tasks if ends.get(task.key, inf) <= until + 1e-9)


def _planned(plan: Plan) -> dict[str, float]:
    return {task.task: task.end for task in plan.tasks if task.end is not None}


def _most_value(instance: Instance, until: float) -> float:
    """Return the most value of all assignments, orders and sizes of packs."""

    def of(found: Schedule) -> float:
        ends = {instance.tasks[p.task].key: p.end for p in found.placements}
        return _value(instance.tasks, ends, until)

    return max(
        of(simulate(instance, Strategy(order=order, seat_of=seat_of, max_lanes=lanes)))
        for seat_of in itertools.product(*instance.fitting)
        for order in itertools.permutations(range(len(instance.tasks)))
        for lanes in (0, 1)
    )


@settings(max_examples=25)
@given(night=nights())
def test_the_value_by_the_morning_is_between_greedys_and_the_bound(
    night: tuple[list[Task], list[Device], float],
) -> None:
    tasks, on, until = night
    instance = Instance(tasks, on, (), NOW)
    bound = assign(instance, range(len(tasks)), SOLVER, seconds=2.0, horizon=until).bound
    best = _most_value(instance, until)
    options = Options(until=NOW + until, search_rounds=20, solver_seconds=1.0)
    greedy, solved = (
        _value(tasks, _planned(make_plan(tasks, on, NOW, options, solver=solver)), NOW + until)
        for solver in (None, SOLVER)
    )
    assert greedy <= solved <= best <= bound + 1e-6


def test_what_is_worth_most_ends_before_the_morning_though_it_came_last() -> None:
    tasks = [lane(f"t{n}", tokens=1000, value=1.0 + (n == 4)) for n in range(5)]
    hours = (Window(begin=NOW, end=NOW + 25.0), Window(begin=NOW + 100.0, end=NOW + 999.0))
    options = Options(windows=hours, until=NOW + 25.0, solver_seconds=1.0)
    for solver in (None, SOLVER):
        plan = make_plan(tasks, [device()], NOW, options, solver=solver)
        by_morning = {key for key, end in _planned(plan).items() if end <= NOW + 25.0}
        assert "t4" in by_morning
        assert len(by_morning) == 2
        assert len(_planned(plan)) == 5


@settings(max_examples=40)
@given(
    others=st.lists(st.tuples(st.sampled_from((100, 3000)), st.integers(0, 9)), max_size=7),
    lanes=st.sampled_from((0, 1, 3)),
    spare=st.sampled_from((0.0, 0.5, 20.0)),
)
def test_a_promise_that_can_be_kept_is_kept_whoever_is_in_the_queue(
    others: list[tuple[int, int]], lanes: int, spare: float
) -> None:
    on = [device(max_lanes=lanes)]
    promised = lane("promised", tokens=2000, promised=True)
    alone = Instance([promised], on, (), NOW).solo_seconds(0, 0)
    promised = msgspec.structs.replace(promised, deadline=NOW + alone + spare + 1e-6)
    queue = [
        lane(f"t{n}", tokens=tokens, priority=priority, value=9.0)
        for n, (tokens, priority) in enumerate(others)
    ]
    plan = make_plan([*queue, promised], on, NOW, Options(search_rounds=20, until=NOW + 30.0))
    assert plan.tasks[-1].in_time
    assert all(task.end is not None for task in plan.tasks)


@settings(max_examples=40)
@given(priorities=st.lists(st.integers(0, 3), min_size=2, max_size=7))
def test_where_one_runs_at_a_time_the_higher_priority_goes_first(priorities: list[int]) -> None:
    tasks = [lane(f"t{n}", priority=p, steps=50 + n) for n, p in enumerate(priorities)]
    plan = make_plan(tasks, [device(max_lanes=1)], NOW, Options(search_rounds=20))
    begins = sorted(zip((task.begin for task in plan.tasks), priorities, strict=True))
    in_turn = [priority for _, priority in begins]
    assert in_turn == sorted(priorities, reverse=True)


def test_a_deadline_that_no_plan_can_keep_is_said_to_be_missed() -> None:
    late = lane("late", tokens=2000, deadline=NOW + 19.0)
    (found,) = make_plan([late], [device()], NOW, Options()).tasks
    assert found.in_time is False
    assert found.end == pytest.approx(NOW + 20.0)
