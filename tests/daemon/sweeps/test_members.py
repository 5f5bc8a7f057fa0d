"""Which members a sweep has, and what they are called."""

import math
from typing import Any

import pytest

from slidepack.daemon.requests import JobSettings
from slidepack.daemon.sweeps.members import (
    axes_of,
    check_settings,
    expand,
    member_name,
    settings_of,
)
from slidepack.daemon.sweeps.request import MAX_MEMBERS, SweepPlan
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LORA_TARGETS


def _settings(plan: SweepPlan) -> list[JobSettings]:
    return [check_settings(settings_of(plan, one)) for one in expand(plan)]


def test_a_grid_is_every_combination() -> None:
    plan = SweepPlan(fixed={"epochs": 1}, grid={"lr": [1e-4, 2e-4], "rank": [8, 16]})
    found = _settings(plan)
    assert [(one.lr, one.rank) for one in found] == [(1e-4, 8), (1e-4, 16), (2e-4, 8), (2e-4, 16)]
    assert {one.epochs for one in found} == {1.0}


@pytest.mark.parametrize("factor", [1, 2, 0.25])
def test_alpha_may_follow_the_rank(factor: float) -> None:
    plan = SweepPlan(grid={"rank": [8, 16], "alpha_times_rank": [factor]})
    assert [(one.rank, one.alpha) for one in _settings(plan)] == [
        (8, 8 * factor),
        (16, 16 * factor),
    ]
    fixed = SweepPlan(fixed={"alpha_times_rank": factor}, grid={"rank": [4]})
    assert _settings(fixed)[0].alpha == 4 * factor


def test_members_are_measured_on_the_same_rows_whatever_their_seeds() -> None:
    plan = SweepPlan(grid={"seed": [1, 2]})
    found = _settings(plan)
    assert [one.seed for one in found] == [1, 2]
    assert {one.split_seed for one in found} == {0}
    assert {(one.selection_fraction, one.test_fraction) for one in found} == {(0.1, 0.1)}
    chosen = SweepPlan(fixed={"seed": 7, "test_fraction": 0.2}, grid={"rank": [1, 2]})
    assert {(one.split_seed, one.test_fraction) for one in _settings(chosen)} == {(7, 0.2)}


def _drawn(**changes: Any) -> list[dict[str, Any]]:
    space = {
        "count": 200,
        "lr": {"log": [2e-5, 4e-4]},
        "dropout": {"uniform": [0.0, 0.2]},
        "rank": {"choices": [8, 16, 32]},
        "batch_size": {"log": [1, 8]},
    }
    return expand(SweepPlan(random=space | changes))


def test_draws_lie_in_their_ranges_and_can_be_had_again() -> None:
    found = _drawn()
    assert len(found) == 200
    assert all(2e-5 <= one["lr"] <= 4e-4 for one in found)
    assert all(0 <= one["dropout"] <= 0.2 for one in found)
    assert {one["rank"] for one in found} == {8, 16, 32}
    assert {one["batch_size"] for one in found} == set(range(1, 9))
    assert all(type(one["batch_size"]) is int for one in found)
    assert found == _drawn()
    assert found != _drawn(seed=1)
    # A magnitude is as likely as another: a third of the way up is far below a third of the range.
    below = sum(one["lr"] < math.sqrt(2e-5 * 4e-4) for one in found)
    assert 70 <= below <= 130


def test_one_more_setting_does_not_change_what_others_draw() -> None:
    more = _drawn(weight_decay={"uniform": [0, 0.1]})
    assert [one["lr"] for one in more] == [one["lr"] for one in _drawn()]


def test_each_draw_meets_each_point_of_a_grid() -> None:
    plan = SweepPlan(random={"count": 3, "rank": {"choices": [8]}}, grid={"seed": [0, 1]})
    assert [one["seed"] for one in expand(plan)] == [0, 1] * 3


def test_members_may_be_named_one_by_one() -> None:
    assert expand(SweepPlan(), [{"lr": 1e-4}, {"rank": 4}]) == [{"lr": 1e-4}, {"rank": 4}]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"fixed": {"rang": 8}, "grid": {"lr": [1.0]}}, "no setting rang. Known are method, rank"),
        ({"grid": {"rang": [8]}}, "rang in [grid] is not known. Members differ in lr, rank"),
        ({"random": {"count": 1, "rang": {"choices": [8]}}}, "rang in [random] is not known"),
        ({"grid": {"max_seq_len": [64, 128]}}, "the same for all members, in [fixed]"),
        ({"grid": {"test_fraction": [0.1]}}, "the same for all members, in [fixed]"),
        ({"fixed": {"method": "full"}, "grid": {"lr": [1e-5]}}, "method is not lora"),
        ({"grid": {"method": ["full"]}}, "the same for all members"),
        ({"fixed": {"name": "x"}, "grid": {"lr": [1e-5]}}, "no setting name"),
        ({}, "it has 0 members"),
        ({"fixed": {"rank": 8}}, "it has 0 members"),
        ({"grid": {"seed": list(range(501))}}, "it has 501 members"),
        ({"grid": {"seed": list(range(30)), "rank": list(range(1, 31))}}, "it has 900 members"),
        ({"random": {"count": 10**9, "rank": {"choices": [1]}}}, "it has 1000000000 members"),
        ({"grid": {"lr": []}}, "grid.lr is []"),
        ({"grid": {"lr": 1e-4}}, "grid.lr is 0.0001"),
        ({"grid": {"lr": [1e-4]}, "fixed": {"lr": 1e-4}}, "lr is given in two places"),
        (
            {"grid": {"lr": [1e-4]}, "random": {"count": 1, "lr": {"choices": [1]}}},
            "lr is given in two places",
        ),
        ({"grid": {"alpha": [8], "alpha_times_rank": [1]}}, "alpha and alpha_times_rank"),
        ({"grid": {"steps": [8]}, "fixed": {"epochs": 1}}, "steps and epochs are both given"),
        ({"random": {"count": 3}}, "does not say where settings are drawn from"),
        ({"random": {"lr": {"log": [1, 2]}}}, "does not say count"),
        ({"random": {"count": -1, "lr": {"log": [1, 2]}}}, "random.count is -1"),
        ({"random": {"count": True, "lr": {"log": [1, 2]}}}, "random.count is True"),
        ({"random": {"count": 1, "lr": {"log": [0, 1]}}}, "log begins at 0"),
        ({"random": {"count": 1, "lr": {"log": [2, 1]}}}, "from 2 to 1"),
        ({"random": {"count": 1, "lr": {"log": [1, math.inf]}}}, "from 1 to inf"),
        ({"random": {"count": 1, "lr": [1e-4]}}, "lr: Expected `object`"),
        ({"random": {"count": 1, "lr": {"normal": [0, 1]}}}, "unknown field `normal`"),
        ({"random": {"count": 1, "lr": {}}}, "give one of log, uniform and choices"),
        ({"random": {"count": 1, "rank": {"uniform": [8.2, 8.8]}}}, "no whole number"),
        ({"random": {"count": 1, "schedule": {"log": [1, 2]}}}, "schedule is no number"),
    ],
)
def test_what_cannot_be_swept_is_refused(plan: dict[str, Any], said: str) -> None:
    with pytest.raises(SlidepackError) as caught:
        expand(SweepPlan(**plan))
    assert caught.value.report.code == "RUN-SPEC-INVALID"
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"rank": ["eight"]}, "$.rank"),
        ({"schedule": ["square"]}, "$.schedule"),
        ({"seed": [None]}, "$.seed"),
        ({"alpha_times_rank": ["one"]}, "alpha_times_rank is 'one'"),
        ({"alpha_times_rank": [0]}, "alpha_times_rank is 0"),
        ({"alpha_times_rank": [math.nan]}, "alpha_times_rank is nan"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(grid: dict[str, Any], said: str) -> None:
    with pytest.raises(SlidepackError, match="RUN-SPEC-INVALID") as caught:
        _settings(SweepPlan(grid=grid))
    assert said in str(caught.value)


def test_the_largest_sweep_is_allowed() -> None:
    assert len(expand(SweepPlan(grid={"seed": list(range(MAX_MEMBERS))}))) == MAX_MEMBERS


@pytest.mark.parametrize(
    ("assignment", "name"),
    [
        ({"lr": 2e-4, "rank": 16}, "first lr=2e-4 rank=16"),
        ({"lr": 0.000123, "dropout": 0.05}, "first lr=1.23e-4 dropout=0.05"),
        ({"targets": ["q_proj", "v_proj"], "rslora": True}, "first targets=q+v rslora=True"),
        ({"targets": LORA_TARGETS, "dropout": 0.0}, "first targets=all dropout=0"),
        ({"epochs": 1.5, "seed": 12345678, "lr": 1.0}, "first epochs=1.5 seed=12345678 lr=1"),
    ],
)
def test_a_member_is_named_by_what_it_is(assignment: dict[str, Any], name: str) -> None:
    assert member_name("first", assignment) == name


def test_who_chooses_one_by_one_sees_ranges_and_lists() -> None:
    axes = axes_of(SweepPlan(random={"lr": {"log": [1e-5, 1e-3]}}, grid={"rank": [8, 16]}))
    assert axes["lr"].log == (1e-5, 1e-3)
    assert axes["rank"].choices == (8, 16)
    with pytest.raises(SlidepackError, match="no setting to search"):
        axes_of(SweepPlan(fixed={"rank": 8}))
