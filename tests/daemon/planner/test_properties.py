"""What holds for any queue, on any devices, in any hours."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plan_checks import SLACK, check_plan
from support.plan_problems import NOW, devices, queues, windows

from slidepack.daemon.planner.answer import Options, Plan
from slidepack.daemon.planner.ilp import HighsSolver
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planner.tasks import Device, Task


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Task], list[Device], Options]:
    on = draw(devices())
    tasks = draw(queues(tuple(device.key for device in on)))
    options = Options(
        windows=draw(windows()),
        until=draw(st.sampled_from((None, None, NOW + 150.0))),
        seed=draw(st.integers(0, 3)),
        search_rounds=20,
        solver_seconds=0.5,
        degrees=draw(st.sampled_from(((1,), (1, 2), (1, 2, 4)))),
    )
    return tasks, on, options


@st.composite
def running(draw: st.DrawFn) -> tuple[list[Task], list[Device], Options]:
    """A queue of which some are under way, as the plan before says."""
    tasks, on, options = draw(problems())
    plan = make_plan(tasks, on, NOW, options)
    begun = {task.task: task.devices for task in plan.tasks if task.begin == NOW}
    moving = draw(st.sampled_from((0.0, 30.0)))
    return (
        [
            msgspec.structs.replace(task, running_on=begun[task.key], move_seconds=moving, after=())
            if task.key in begun
            else task
            for task in tasks
        ],
        on,
        options,
    )


@settings(max_examples=50)
@given(problem=problems())
def test_no_plan_breaks_a_rule(problem: tuple[list[Task], list[Device], Options]) -> None:
    tasks, on, options = problem
    check_plan(make_plan(tasks, on, NOW, options), tasks, on, NOW, options)


@settings(max_examples=15)
@given(problem=problems())
def test_the_solver_is_never_worse_and_breaks_no_rule(
    problem: tuple[list[Task], list[Device], Options],
) -> None:
    tasks, on, options = problem
    greedy = make_plan(tasks, on, NOW, options)
    solved = make_plan(tasks, on, NOW, options, solver=HighsSolver())
    check_plan(solved, tasks, on, NOW, options)
    assert _judged(solved, tasks, options) <= _judged(greedy, tasks, options)


def _judged(plan: Plan, tasks: list[Task], options: Options) -> tuple[float, ...]:
    """Deadlines, then value, then the time of each priority by its weight."""
    missed = sum(task.in_time is False for task in plan.tasks)
    by_key = {task.key: task for task in tasks}
    until = float("inf") if options.until is None else options.until + SLACK
    value = sum(
        by_key[task.task].value for task in plan.tasks if task.end is not None and task.end <= until
    )
    ranks = {priority: rank for rank, priority in enumerate(sorted({t.priority for t in tasks}))}
    last = dict.fromkeys(ranks, 0.0)
    open_seconds = 0.0
    for task in plan.tasks:
        if task.end is not None:
            priority = by_key[task.task].priority
            last[priority] = max(last[priority], task.end)
    if not options.windows:
        open_seconds = sum(4.0 ** ranks[priority] * end for priority, end in last.items())
    return missed, -round(value, 6), round(open_seconds, 3)


@settings(max_examples=15)
@given(problem=problems())
def test_the_same_seed_gives_the_same_plan(
    problem: tuple[list[Task], list[Device], Options],
) -> None:
    tasks, on, options = problem
    assert make_plan(tasks, on, NOW, options) == make_plan(tasks, on, NOW, options)


@settings(max_examples=20)
@given(problem=running())
def test_replanning_breaks_no_rule(problem: tuple[list[Task], list[Device], Options]) -> None:
    tasks, on, options = problem
    plan = make_plan(tasks, on, NOW, options)
    check_plan(plan, tasks, on, NOW, options)
    for task in tasks:
        (found,) = [planned for planned in plan.tasks if planned.task == task.key]
        if task.running_on and not found.moves:
            assert found.devices == task.running_on
            assert found.begin is not None
