import subprocess
import sys

import msgspec
import pytest
from support.plan_checks import check_plan
from support.plan_problems import MB, NOW, base, device, full, lane

from slidepack.daemon.planner.answer import Options, Plan, TaskPlan
from slidepack.daemon.planner.ilp import HighsSolver
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planner.tasks import Device, PassBytes, Task


def _plan(
    tasks: list[Task], devices: list[Device], *, solve: bool = False, **asked: object
) -> tuple[Plan, dict[str, TaskPlan]]:
    options = msgspec.convert(asked, Options)
    plan = make_plan(tasks, devices, NOW, options, solver=HighsSolver() if solve else None)
    check_plan(plan, tasks, devices, NOW, options)
    return plan, {task.task: task for task in plan.tasks}


def test_small_steps_are_packed_and_the_plan_says_what_that_buys() -> None:
    plan, _ = _plan([lane(f"t{i}") for i in range(8)], [device()])
    assert plan.makespan_seconds == pytest.approx(10.0)
    assert plan.one_by_one_seconds == pytest.approx(80.0)
    assert plan.packing_gain == pytest.approx(8.0)
    assert plan.packing_pays
    assert plan.verdict == "Packing is 8.0 times as fast as one job at a time on each device."
    assert plan.max_lanes == {"cuda:0": 8}
    assert plan.gap == pytest.approx(0.0)


def test_it_says_so_where_packing_does_not_pay() -> None:
    plan, _ = _plan([lane(f"t{i}", tokens=5000) for i in range(4)], [device()])
    assert not plan.packing_pays
    assert plan.verdict == (
        "Packing does not pay here (1.00 times as fast): a job's steps fill a device by themselves."
    )


def test_the_longest_job_is_named_where_nothing_can_be_faster_than_it() -> None:
    plan, _ = _plan([lane("long", steps=900), lane("short")], [device(), device("cuda:1")])
    assert plan.bound_kind == "chain"
    assert "long takes as long alone as the whole plan" in plan.verdict


def test_pack_and_recompute_is_compared_with_fewer_lanes_that_need_not() -> None:
    kept = base(keep=PassBytes(per_token=MB), keep_tokens=2000, recompute_slowdown=1.5)
    tasks = [lane(key, tokens=2000, steps=10, params=60 * MB) for key in "abcd"]
    plan, _ = _plan(tasks, [device(bases={"b": kept})])
    assert plan.makespan_seconds == pytest.approx(8.0)
    assert plan.max_lanes == {"cuda:0": 1}


def test_an_empty_queue_and_no_device_are_plans_too() -> None:
    plan, _ = _plan([], [device()])
    assert (plan.spans, plan.makespan_seconds, plan.gap) == ((), 0.0, 0.0)
    plan, found = _plan([lane("a")], [])
    assert (found["a"].fits, found["a"].waits) == (False, "There is no device.")


def test_what_fits_nowhere_says_what_would_help() -> None:
    _, found = _plan([lane("a", params=400 * MB, longest=1024, tokens=2048)], [device()])
    assert not found["a"].fits
    assert found["a"].waits == "It needs 7.4 GiB, and 3.9 may be used on cuda:0."
    assert found["a"].remedy == "Use at most 45% of its rank, or a device with 7.4 GiB to use."


def test_rows_that_are_too_long_say_how_long_they_may_be() -> None:
    _, found = _plan([lane("a", longest=30_000, tokens=30_000)], [device()])
    assert "or rows of at most 23877 tokens" in found["a"].remedy.replace("Use rows", "or rows")


def test_a_full_fine_tuning_that_fits_nowhere_says_why() -> None:
    _, found = _plan([full("f", devices=())], [device()])
    assert found["f"].waits == "It is too large."


def test_a_pack_takes_two_devices_where_its_base_fits_none() -> None:
    tasks = [lane("a", model="large"), lane("b")]
    on = [
        device(f"cuda:{i}", bases={"b": base(), "large": base(fixed_bytes=6000 * MB)})
        for i in (0, 1)
    ]
    _, found = _plan(tasks, on)
    assert not found["a"].fits
    plan, found = _plan(tasks, on, degrees=(1, 2))
    assert found["a"].devices == ("cuda:0", "cuda:1")
    assert found["b"].end is not None
    assert plan.makespan_seconds == pytest.approx(20.0, rel=0.01)


def test_the_highest_priority_begins_first_and_the_others_say_what_they_wait_for() -> None:
    tasks = [lane("a"), lane("b"), lane("urgent", priority=3)]
    _, found = _plan(tasks, [device(max_lanes=1)])
    assert found["urgent"].begin == NOW
    assert found["urgent"].waits == ""
    assert found["b"].waits == "Waits for a seat: the pack has as many lanes as it may."


def test_a_deadline_is_kept_where_any_order_keeps_it() -> None:
    tasks = [lane(f"t{i}", tokens=3000) for i in range(4)]
    tasks.append(lane("due", tokens=3000, deadline=NOW + 31.0))
    _, found = _plan(tasks, [device()])
    assert found["due"].in_time


def test_a_deadline_that_nothing_keeps_is_said_and_loses_no_job() -> None:
    _, found = _plan([lane("due", deadline=NOW + 9.0), lane("b")], [device()])
    assert found["due"].in_time is False
    assert found["due"].end == pytest.approx(NOW + 10.0)


def test_an_accepted_deadline_goes_before_any_priority() -> None:
    promised = lane("due", tokens=3000, deadline=NOW + 31.0, promised=True)
    _, found = _plan([lane("urgent", tokens=3000, priority=9), promised], [device()])
    assert found["due"].in_time


def test_who_waits_for_another_says_for_whom() -> None:
    _, found = _plan([lane("a"), lane("b", after=("a",)), lane("c", after=("gone",))], [device()])
    assert found["b"].waits == "Waits for a."
    assert found["b"].begin == pytest.approx(NOW + 10.0)
    assert found["c"].begin is None
    assert found["c"].waits == "Waits for gone, which is not in the queue: it never begins."


def test_the_night_is_told_in_the_walls_time() -> None:
    nights = [
        {"begin": NOW + 100.0, "end": NOW + 106.0},
        {"begin": NOW + 500.0, "end": NOW + 900.0},
    ]
    plan, found = _plan([lane("a")], [device()], windows=nights)
    assert found["a"].waits == "Waits for the hours in which work may run."
    assert found["a"].begin == NOW + 100.0
    assert found["a"].end == pytest.approx(NOW + 504.0)
    assert [(span.begin - NOW, span.end - NOW, span.ends) for span in plan.spans] == [
        (100.0, 106.0, False),
        (500.0, pytest.approx(504.0), True),
    ]
    assert plan.open_seconds == pytest.approx(10.0)


def test_until_the_morning_what_is_worth_most_is_done() -> None:
    # Each takes 30 s of the device, so three of the five are done by then.
    tasks = [lane(f"t{i}", tokens=3000, value=float(i)) for i in range(5)]
    for solve in (False, True):
        _, found = _plan(tasks, [device()], until=NOW + 95.0, solve=solve)
        done = {key for key, task in found.items() if task.end and task.end <= NOW + 95.0}
        assert done == {"t2", "t3", "t4"}


def test_the_solver_fills_a_night_better_than_any_greedy_order() -> None:
    # A knapsack on which value for time is the wrong order: 60 s hold 35 + 25, not 40.
    sizes = {"a": (40, 41.0), "b": (35, 35.0), "c": (25, 25.0)}
    tasks = [
        lane(key, tokens=3000, steps=round(seconds / 0.3), value=value)
        for key, (seconds, value) in sizes.items()
    ]
    _, found = _plan(tasks, [device()], until=NOW + 60.5, solve=True)
    assert {key for key, task in found.items() if task.end and task.end <= NOW + 60.5} == {"b", "c"}


def test_the_solver_shares_out_over_unequal_devices() -> None:
    on = [
        device("fast", bases={"b": base(), "c": base(cost=base().cost.scaled(4.0))}),
        device("slow", bases={"b": base(cost=base().cost.scaled(4.0)), "c": base()}),
    ]
    tasks = [lane(f"t{i}", tokens=1500 + 100 * i, model="bc"[i % 2]) for i in range(12)]
    plan, found = _plan(tasks, on, solve=True)
    assert all(found[f"t{i}"].devices == (("fast",), ("slow",))[i % 2] for i in range(12))
    assert plan.gap < 0.02


def test_what_runs_stays_where_a_move_would_gain_little() -> None:
    tasks = [
        lane("a", running_on=("cuda:1",), tokens=2000, move_seconds=10.0),
        lane("b", running_on=("cuda:1",), tokens=2000, move_seconds=10.0),
    ]
    plan, found = _plan(tasks, [device(), device("cuda:1")])
    assert plan.moved == ()
    assert found["a"].devices == found["b"].devices == ("cuda:1",)


def test_what_runs_is_moved_where_that_pays() -> None:
    tasks = [
        lane(key, running_on=("cuda:1",), tokens=2000, steps=3000, move_seconds=10.0)
        for key in "ab"
    ]
    plan, _ = _plan(tasks, [device(), device("cuda:1")])
    assert len(plan.moved) == 1
    # Both would take 1,200 s together; one alone takes 600, and the move 10 more.
    assert plan.makespan_seconds == pytest.approx(610.0)


def test_a_low_priority_gives_way_only_where_the_high_one_gains_more_than_the_move_costs() -> None:
    low = full("low", 1.0, steps=1000, running_on=("cuda:0",), move_seconds=20.0)
    urgent = lane("urgent", priority=5, steps=3000)
    plan, found = _plan([low, urgent], [device()])
    assert plan.moved == ("low",)
    assert found["urgent"].begin == NOW
    short = msgspec.structs.replace(low, steps=30)
    plan, found = _plan([short, urgent], [device()])
    assert plan.moved == ()


def test_time_that_is_up_still_gives_a_plan_without_a_loss() -> None:
    tasks = [lane(f"t{i}", tokens=100 * (i + 1)) for i in range(60)]
    plan = make_plan(tasks, [device(), device("cuda:1")], NOW, Options(), seconds_left=lambda: 0.0)
    assert plan.simulated == 1
    assert all(task.end is not None for task in plan.tasks)


def test_two_of_one_key_are_refused() -> None:
    with pytest.raises(ValueError, match="same key"):
        make_plan([lane("a"), lane("a")], [device()], NOW, Options())


def test_greedy_alone_loads_no_solver() -> None:
    code = (
        "import sys; import slidepack.daemon.planner.plan; "
        "import slidepack.daemon.planner.from_engine; "
        "print(sorted({'numpy', 'highspy', 'torch'} & set(sys.modules)))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[]"
