"""The solver's process: its answers, its failures, and its end."""

import sys
from typing import Final

import msgspec
import psutil
import pytest
from support.plan_shop import NOW, PlanShop
from support.waiting import wait_until

from slidepack.daemon.planner.request import PlanRequest
from slidepack.daemon.planner.tasks import Task
from slidepack.daemon.planning.solver_process import Solving, solve_in_process
from slidepack.engine.contract.errors import SlidepackError

ENDLESS: Final = (sys.executable, "-c", "while True: pass")
EMPTY: Final = PlanRequest(tasks=(), devices=(), now=NOW)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_it_plans_as_well_as_the_daemon(shop: PlanShop) -> None:
    for _ in range(3):
        shop.add()
    request = shop.maker.request(shop.reader.picture(NOW), solver_seconds=1.0)
    before = _children()
    plan = solve_in_process(msgspec.structs.replace(request, seconds=60.0))
    assert [task.begin for task in plan.tasks] == [NOW] * 3
    assert plan.gap >= 0.0
    assert _children() == before


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("raise SystemExit(3)", "ended with code 3"),
        ("print('{')", "ended with code 0"),
        ("import os; os.kill(os.getpid(), 9)", "ended with code -9"),
    ],
)
def test_a_process_that_fails_is_told(script: str, why: str) -> None:
    with pytest.raises(SlidepackError, match=why) as told:
        solve_in_process(EMPTY, (sys.executable, "-c", script))
    assert told.value.report.code == "RUN-CRASHED"


def test_what_the_process_refuses_is_passed_on() -> None:
    twins = (Task(key="a", steps=1, model="m", tokens=1),) * 2
    with pytest.raises(SlidepackError, match="same key") as told:
        solve_in_process(PlanRequest(tasks=twins, devices=(), now=NOW))
    assert told.value.report.code == "DAEMON-REQUEST-INVALID"


def test_a_command_that_is_not_there_is_told() -> None:
    with pytest.raises(SlidepackError, match="could not be started"):
        solve_in_process(EMPTY, ("/nowhere/solver",))


def test_a_process_that_takes_too_long_is_ended() -> None:
    before = _children()
    solving = Solving(msgspec.structs.replace(EMPTY, seconds=-10.0), ENDLESS)
    solving.wait()
    assert solving.ended()
    with pytest.raises(SlidepackError, match="was too slow"):
        solving.answer()
    assert _children() == before


def test_killed_it_leaves_nothing_behind() -> None:
    before = _children()
    solving = Solving(EMPTY, ENDLESS)
    assert not solving.ended()
    wait_until(lambda: _children() != before)
    solving.kill()
    assert _children() == before
