import json
import subprocess
import sys
from subprocess import CompletedProcess
from typing import Any

import pytest
from rich.console import Console

from slidepack.cli import output
from slidepack.cli.bench_planner import planner
from slidepack.engine.contract.errors import SlidepackError


def _case(**changed: Any) -> dict[str, Any]:
    return {
        "name": "mixed",
        "base": "Qwen2.5-3B",
        "devices": ["RTX 4090", "A10", "A10"],
        "configurations": 120,
        "planning_seconds": 8.25,
        "makespan_seconds": 1712.77,
        "ratio": 1.0123,
        "greedy_ratio": 1.0456,
        "greedy_assignment_ratio": 1.0789,
        "verdict": "Packing is 2.5 times as fast as one job at a time on each device.",
        "others": {"Min-GPU": 2.67, "Max-GPU": 15.0, "LPT": 2.53, "DTM": 1.39},
        "bars": [
            {"name": "solver_bound", "limit": 1.02, "value": 1.0123, "passed": True},
            {"name": "time", "limit": 10.0, "value": 12.5, "passed": False},
        ],
    } | changed


def _answer(
    monkeypatch: pytest.MonkeyPatch, status: int, printed: str, said: str = ""
) -> list[Any]:
    commands: list[Any] = []

    def run(command: list[str], **kwargs: Any) -> "CompletedProcess[str]":
        commands.append(command)
        return CompletedProcess(command, status, printed, said)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(output, "Console", lambda **kwargs: Console(width=200, **kwargs))
    return commands


def test_planner_prints_a_row_a_case_and_says_which_bars_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, 0, json.dumps({"seed": 0, "cases": [_case()]}))
    planner()
    text = capsys.readouterr().out
    assert text.splitlines()[1].split() == [
        *("mixed", "120", "1", "RTX", "4090,", "2", "A10", "8.25", "s", "1,713", "s"),
        *("1.012", "1.046", "2.67", "15.00", "2.53", "1.39"),
    ]
    named = "mixed, 120 lanes of Qwen2.5-3B"
    assert f"{named}: plan over the solver's bound 1.012, bar 1.02: kept\n" in text
    assert f"{named}: seconds of planning 12.500, bar 10: MISSED\n" in text
    assert f"{named}: greedy's assignment over the solver's bound 1.079\n" in text
    assert f"{named}: Packing is 2.5 times as fast" in text


def test_planner_says_that_no_bound_was_proved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = {"name": "solver_bound", "limit": 1.02, "value": None, "passed": False}
    _answer(monkeypatch, 0, json.dumps({"seed": 0, "cases": [_case(bars=[bar])]}))
    planner()
    assert "plan over the solver's bound none, bar 1.02: MISSED" in capsys.readouterr().out


def test_planner_json_is_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"seed": 3, "cases": [_case()]}
    commands = _answer(monkeypatch, 0, json.dumps(answer))
    planner(seed=3, quick=True, json_output=True)
    assert json.loads(capsys.readouterr().out) == answer
    assert commands[0][0] == sys.executable
    assert commands[0][-3:] == ["--seed", "3", "--quick"]


def test_planner_that_does_not_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    _answer(monkeypatch, 1, "", "Traceback\nModuleNotFoundError: No module named 'highspy'\n")
    with pytest.raises(SlidepackError) as caught:
        planner()
    assert caught.value.report.code == "RUN-CRASHED"
    assert caught.value.report.why == "ModuleNotFoundError: No module named 'highspy'"


@pytest.mark.full
def test_planner_runs_as_it_is_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    planner(quick=True, json_output=True)
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [case["name"] for case in cases][:3] == ["one device", "one device", "eight equal"]
    for case in cases:
        assert case["makespan_seconds"] >= case["bound_seconds"] > 0.0
        assert set(case["others"]) == {"Min-GPU", "Max-GPU", "LPT", "DTM"}
    mixed = [case for case in cases if case["name"] == "mixed"]
    assert any(case["solver_bound_seconds"] for case in mixed)
