"""`python -m slidepack.daemon.planner.bench`: how near plans come to their bounds, as JSON."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from slidepack.daemon.planner.answer import Options, Plan
from slidepack.daemon.planner.assignment import assign, modelled_seconds
from slidepack.daemon.planner.baselines import baseline
from slidepack.daemon.planner.bench_cases import (
    LONG_ROW,
    MIXED,
    QWEN_3B,
    QWEN_7B,
    ROW_TOKENS,
    BenchBase,
    devices_of,
    queue,
    with_paper_profile,
)
from slidepack.daemon.planner.dtm import dtm_seconds
from slidepack.daemon.planner.ilp import HighsSolver
from slidepack.daemon.planner.instance import Instance
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planner.tasks import Device, Task

__all__ = ["Bar", "Case", "main", "run"]

_ROUNDS: Final = 2000
_ROUNDS_WITH_SOLVER: Final = 100
"""Before the solver is asked: the time is for what comes after."""
_SOLVER_SHARE: Final = 0.7
_SECONDS: Final = 10.0
"""For a plan, where no bar says less."""
_ONE_BARS: Final = {"bound": 1.05, "time": 5.0}
_EIGHT_BARS: Final = {"bound": 1.20}
_MIXED_BARS: Final = {"solver_bound": 1.02, "assignment": 1.02, "time": 10.0}
_PROGRAM_SECONDS: Final = 1.0
"""For each program of the paper's planner; its own takes up to a second."""


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure must not be above."""

    name: str
    limit: float
    value: float | None
    """None where there is none, which keeps no bar."""
    passed: bool


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison."""

    name: str
    base: str
    devices: tuple[str, ...]
    configurations: int
    row_tokens: int
    planning_seconds: float
    makespan_seconds: float
    bound_seconds: float
    ratio: float
    """Makespan over the bound."""
    greedy_ratio: float
    solver_bound_seconds: float | None
    solver_ratio: float | None
    """Makespan over the bound that the solver proved."""
    assignment_ratio: float | None
    """The solver's assignment over its bound, both as the program counts them."""
    greedy_assignment_ratio: float | None
    """The same of the greedy plan's assignment."""
    packing_gain: float
    """Against one job at a time, the longest first."""
    verdict: str
    others: dict[str, float]
    """Makespan of each baseline over ours."""
    bars: tuple[Bar, ...]


def run(*, seed: int, quick: bool = False) -> list[Case]:
    """Run all cases.

    Args:
        seed: of the random configurations and the searches.
        quick: with fewer configurations and less time, to see that it works.
    """
    few, many = (18, 36) if quick else (120, 500)
    share = 0.1 if quick else 1.0
    one, eight = devices_of(["A100-40"], QWEN_7B), devices_of(["A100-40"] * 8, QWEN_7B)
    paper = [with_paper_profile(device, ROW_TOKENS) for device in eight]
    mixed = devices_of(MIXED, QWEN_3B)

    def case(
        name: str,
        devices: Sequence[Device],
        base: BenchBase,
        count: int,
        limits: dict[str, float] | None = None,
        *,
        row_tokens: int = ROW_TOKENS,
        solver: bool = False,
    ) -> Case:
        tasks = queue(count, base, row_tokens, seed)
        seconds = share * (limits or {}).get("time", _SECONDS)
        compared = _Comparison(tasks, devices, seed, seconds, solver=solver)
        return compared.case(name, base, row_tokens, limits or {})

    return [
        case("one device", one, QWEN_7B, few, _ONE_BARS),
        case("one device", one, QWEN_7B, many, _ONE_BARS),
        case("eight equal", eight, QWEN_7B, few, _EIGHT_BARS),
        case("eight equal", eight, QWEN_7B, many),
        case("mixed", mixed, QWEN_3B, few, _MIXED_BARS, solver=True),
        case("mixed", mixed, QWEN_3B, many, _MIXED_BARS, solver=True),
        case("paper's profile", paper, QWEN_7B, few),
        case("long rows", eight, QWEN_7B, few, row_tokens=LONG_ROW),
    ]


class _Comparison:
    """One queue on some devices: our plan, and the others'."""

    def __init__(
        self,
        tasks: Sequence[Task],
        devices: Sequence[Device],
        seed: int,
        seconds: float,
        *,
        solver: bool,
    ) -> None:
        self._tasks, self._devices = tasks, devices
        self._seed, self._seconds, self._solver = seed, seconds, solver

    def case(self, name: str, base: BenchBase, row_tokens: int, limits: dict[str, float]) -> Case:
        """Plan, compare, and say which bars are kept."""
        begun = time.monotonic()
        plan = self._plan(begun, solver=self._solver)
        taken = time.monotonic() - begun
        greedy = self._plan(time.monotonic(), solver=False) if self._solver else plan
        proved = plan.solver_bound_seconds
        ours, greedys = self._assignments(greedy) if self._solver else (None, None)
        figures: dict[str, float | None] = {
            "bound": plan.open_seconds / plan.bound_seconds,
            "solver_bound": plan.open_seconds / proved if proved else None,
            "assignment": ours,
            "time": taken,
        }
        return Case(
            name=name,
            base=base.name,
            devices=tuple(device.name for device in self._devices),
            configurations=len(self._tasks),
            row_tokens=row_tokens,
            planning_seconds=taken,
            makespan_seconds=plan.open_seconds,
            bound_seconds=plan.bound_seconds,
            ratio=plan.open_seconds / plan.bound_seconds,
            greedy_ratio=greedy.open_seconds / (proved or plan.bound_seconds),
            solver_bound_seconds=proved,
            solver_ratio=figures["solver_bound"],
            assignment_ratio=ours,
            greedy_assignment_ratio=greedys,
            packing_gain=plan.packing_gain,
            verdict=plan.verdict,
            others={key: value / plan.open_seconds for key, value in self._others().items()},
            bars=tuple(_bar(name, limit, figures[name]) for name, limit in limits.items()),
        )

    def _plan(self, begun: float, *, solver: bool) -> Plan:
        # The last tenth is for what is under way when time is up.
        end = begun + 0.9 * self._seconds
        options = Options(seed=self._seed, search_rounds=2000, solver_seconds=0.5 * self._seconds)
        return make_plan(
            self._tasks,
            self._devices,
            0.0,
            options,
            solver=HighsSolver(seed=self._seed) if solver else None,
            seconds_left=lambda: end - time.monotonic(),
        )

    def _assignments(self, greedy: Plan) -> tuple[float, float]:
        """Return how far the solver's assignment and greedy's are from the program's bound."""
        instance = Instance(self._tasks, self._devices, (), 0.0)
        seats = {seat.keys: number for number, seat in enumerate(instance.seats)}
        start = [seats[task.devices] for task in greedy.tasks]
        tasks = range(len(self._tasks))
        solver = HighsSolver(seed=self._seed)
        found = assign(instance, tasks, solver, seconds=self._seconds, start=start)
        greedys = modelled_seconds(instance, tasks, start)
        return found.objective / found.bound, greedys / found.bound

    def _others(self) -> dict[str, float]:
        """Return the makespans of those we are compared with."""
        alone = Instance(self._tasks, self._devices, (), 0.0)
        together = Instance(self._tasks, self._devices, (), 0.0, (1, 2, 4, 8))
        return {
            "Min-GPU": baseline(alone, "min-gpu").seconds,
            "Max-GPU": baseline(together, "max-gpu").seconds,
            "LPT": baseline(alone, "lpt").seconds,
            "DTM": dtm_seconds(alone, HighsSolver(gap=0.01), seconds_per_program=_PROGRAM_SECONDS),
        }


def _bar(name: str, limit: float, value: float | None) -> Bar:
    return Bar(name=name, limit=limit, value=value, passed=value is not None and value <= limit)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print it as one line of JSON; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m slidepack.daemon.planner.bench")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(arguments)
    result: dict[str, Any] = {"seed": asked.seed, "cases": run(seed=asked.seed, quick=asked.quick)}
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
