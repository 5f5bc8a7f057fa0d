"""The solver's programs: their bounds, their comparison, and the process that runs them."""

import subprocess
import sys
from math import inf

import msgspec
import pytest
from support.plan_problems import NOW, base, device, full, lane

from slidepack.daemon.planner.answer import Options, Plan
from slidepack.daemon.planner.assignment import assign
from slidepack.daemon.planner.baselines import baseline
from slidepack.daemon.planner.dtm import dtm_seconds
from slidepack.daemon.planner.ilp import HighsSolver
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.milp import Milp
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planner.request import PlanRequest
from slidepack.daemon.planner.schedule import Strategy
from slidepack.daemon.planner.simulate import simulate
from slidepack.daemon.planner.tasks import Device, Task

SOLVER = HighsSolver()


def _mixed() -> list[Device]:
    return [device(), device("slow", bases={"b": base(cost=base().cost.scaled(3.0))})]


def test_a_knapsack_is_solved() -> None:
    milp = Milp()
    columns = [milp.column(cost=-v, upper=1.0, integer=True) for v in (41.0, 35.0, 25.0)]
    milp.row(list(zip(columns, (40.0, 35.0, 25.0), strict=True)), upper=60.0)
    solved = SOLVER.solve(milp, seconds=60.0)
    assert solved.values == pytest.approx([0.0, 1.0, 1.0])
    assert solved.objective == pytest.approx(-60.0)
    assert solved.dual_bound == pytest.approx(-60.0, rel=1e-3)
    assert solved.optimal


def test_what_has_no_solution_says_so() -> None:
    milp = Milp()
    column = milp.column(upper=1.0, integer=True)
    milp.row([(column, 1.0)], lower=2.0)
    solved = SOLVER.solve(milp, seconds=60.0)
    assert solved.values is None
    assert solved.dual_bound == inf


def test_the_solver_says_nothing_on_standard_output() -> None:
    code = (
        "from slidepack.daemon.planner.ilp import HighsSolver\n"
        "from slidepack.daemon.planner.milp import Milp\n"
        "m = Milp(); m.column(cost=1.0, upper=1.0, integer=True)\n"
        "m.row([(0, 1.0)], lower=0.5); HighsSolver().solve(m, seconds=1.0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")


def test_the_bound_of_an_assignment_is_below_what_any_plan_takes() -> None:
    tasks = [lane(f"t{i}", tokens=200 * (i + 1), params=i * 20 << 20) for i in range(8)]
    instance = Instance([*tasks, full("f", 0.2, ("cuda:0", "slow"))], _mixed(), (), NOW)
    found = assign(instance, range(9), SOLVER, seconds=60.0)
    assert found.seat_of is not None
    assert found.bound <= found.objective * (1 + 1e-9)
    for lanes in (0, 1, 2, 4):
        for order in (tuple(range(9)), tuple(reversed(range(9)))):
            for seat_of in (None, found.seat_of):
                strategy = Strategy(order=order, max_lanes=lanes, seat_of=seat_of)
                assert simulate(instance, strategy).makespan >= found.bound - 1e-6


def test_an_assignment_to_begin_with_is_taken() -> None:
    tasks = [lane(f"t{i}", tokens=1000 + 50 * i) for i in range(6)]
    instance = Instance(tasks, _mixed(), (), NOW)
    best = assign(instance, range(6), SOLVER, seconds=60.0)
    again = assign(instance, range(6), SOLVER, seconds=60.0, start=best.seat_of)
    assert again.objective == pytest.approx(best.objective)


def test_a_horizon_takes_what_is_worth_most_and_leaves_the_rest_out() -> None:
    tasks = [lane(f"t{i}", tokens=1000, value=1.0 + i) for i in range(5)]
    found = assign(
        Instance(tasks, [device()], (), NOW), range(5), SOLVER, seconds=60.0, horizon=25.0
    )
    assert found.seat_of == (-1, -1, -1, 0, 0)
    assert found.objective == pytest.approx(9.0)
    assert found.bound == pytest.approx(9.0)


def test_the_degree_of_a_pack_is_for_the_solver_to_choose() -> None:
    large = device("a", bases={"b": base(fixed_bytes=6000 << 20)})
    pair = [large, msgspec.structs.replace(large, key="z")]
    instance = Instance([lane("x")], pair, (), NOW, (1, 2))
    found = assign(instance, [0], SOLVER, seconds=60.0)
    assert found.seat_of is not None
    assert instance.seats[found.seat_of[0]].keys == ("a", "z")


def test_one_adapter_a_job_on_the_fewest_devices_on_all_and_the_longest_first() -> None:
    tasks = [lane("a", steps=50), lane("b", steps=50), lane("c", steps=100)]
    on = [device(), device("cuda:1")]
    alone, together = Instance(tasks, on, (), NOW), Instance(tasks, on, (), NOW, (1, 2))
    assert baseline(alone, "min-gpu").seconds == pytest.approx(15.0)
    assert baseline(alone, "lpt").seconds == pytest.approx(10.0)
    assert baseline(together, "max-gpu").seconds == pytest.approx(20.0)
    with pytest.raises(ValueError, match="no baseline"):
        baseline(alone, "best")


def test_the_papers_planner_packs_the_most_rank_a_second_into_static_jobs() -> None:
    # Ten ranks of a large step, or one of a small one: together they cost 0.3 s a step.
    tasks = [
        lane("high", params=10_000_000, tokens=1000, steps=10),
        lane("low", params=1_000_000, tokens=2000, steps=10),
        lane("tiny", params=1_000_000, tokens=10, steps=30),
    ]
    instance = Instance(tasks, [device()], (), NOW)
    # "high" alone is worth 100 a second; "low" would halve that. With "tiny" it is 109.
    # So 10 steps of 0.101 s and 20 of "tiny" at the floor of 0.1, and then "low" for 2 s.
    assert dtm_seconds(instance, SOLVER, seconds_per_program=2.0) == pytest.approx(5.01)


def _asked(*tasks: Task) -> bytes:
    request = PlanRequest(
        tasks=tasks, devices=tuple(_mixed()), now=NOW, options=Options(search_rounds=10)
    )
    return msgspec.json.encode(request)


def _process(request: bytes) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [sys.executable, "-m", "slidepack.daemon.planner.solve"],
        input=request,
        capture_output=True,
        check=False,
    )


def test_a_process_of_its_own_plans_with_the_solver() -> None:
    tasks = [lane(f"t{i}", tokens=1000 + 100 * i) for i in range(6)]
    ended = _process(_asked(*tasks))
    assert ended.returncode == 0
    plan = msgspec.json.decode(ended.stdout, type=Plan)
    greedy = make_plan(tasks, _mixed(), NOW, Options(search_rounds=10))
    assert plan.makespan_seconds <= greedy.makespan_seconds + 1e-6
    assert ended.stderr == b""


@pytest.mark.parametrize(
    ("request_bytes", "why"),
    [
        (b"{", "truncated"),
        (b'{"tasks": [], "devices": [], "now": 0, "more": 1}', "unknown field `more`"),
        (_asked(lane("a"), lane("a")), "same key"),
        (_asked(lane("a")).replace(b'"steps":100', b'"steps":0'), "0 steps left"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_its_reason(request_bytes: bytes, why: str) -> None:
    ended = _process(request_bytes)
    assert ended.returncode == 76
    error = msgspec.json.decode(ended.stdout)["error"]
    assert error["code"] == "DAEMON-REQUEST-INVALID"
    assert why in error["why"]
