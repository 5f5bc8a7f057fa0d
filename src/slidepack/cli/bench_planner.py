"""`slidepack bench planner`: how near plans come to their bounds, and what others would take."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["planner"]

_BARS: Final = {
    "bound": "over its bound",
    "solver_bound": "plan over the solver's bound",
    "assignment": "assignment over the solver's bound",
    "time": "seconds of planning",
}


def planner(
    seed: Annotated[int, typer.Option(min=0, help="Of random configurations and searches.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few configurations, to see that it works.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Plan PLoRA's search space on one, eight and mixed devices; takes some two minutes."""
    result = _run("--seed", str(seed), *(("--quick",) if quick else ()))
    if json_output:
        print_json(result)
        return
    print_table(
        (
            *("case", "lanes", "devices", "planned in", "makespan", "over bound", "greedy's"),
            *("Min-GPU", "Max-GPU", "LPT", "DTM"),
        ),
        (_row(case) for case in result["cases"]),
    )
    say("The last four are the makespans of others over ours: above 1, ours is shorter.")
    for case in result["cases"]:
        for line in _bars(case):
            say(line)
        if case["greedy_assignment_ratio"] is not None:
            ratio = case["greedy_assignment_ratio"]
            say(f"{_name(case)}: greedy's assignment over the solver's bound {ratio:.3f}")
        say(f"{_name(case)}: {case['verdict']}")


def _run(*arguments: str) -> Any:
    """Run the benchmark in a process of its own: commands load no solver.

    Raises:
        SlidepackError: RUN-CRASHED.
    """
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "slidepack.daemon.planner.bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        said = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise SlidepackError(
            "RUN-CRASHED", "The benchmark did not run.", why=said, fix="Run `slidepack doctor`."
        )
    return json.loads(ended.stdout)


def _row(case: dict[str, Any]) -> tuple[object, ...]:
    others = case["others"]
    return (
        case["name"],
        case["configurations"],
        _devices(case["devices"]),
        f"{case['planning_seconds']:.2f} s",
        f"{case['makespan_seconds']:,.0f} s",
        f"{case['ratio']:.3f}",
        f"{case['greedy_ratio']:.3f}",
        *(f"{others[name]:.2f}" for name in ("Min-GPU", "Max-GPU", "LPT", "DTM")),
    )


def _devices(names: list[str]) -> str:
    counts = {name: names.count(name) for name in names}
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _name(case: dict[str, Any]) -> str:
    return f"{case['name']}, {case['configurations']} lanes of {case['base']}"


def _bars(case: dict[str, Any]) -> Iterator[str]:
    for bar in case["bars"]:
        value = "none" if bar["value"] is None else f"{bar['value']:.3f}"
        kept = "kept" if bar["passed"] else "MISSED"
        yield f"{_name(case)}: {_BARS[bar['name']]} {value}, bar {bar['limit']:g}: {kept}"
