"""Successive halving: who goes on, and that it is remembered."""

import math
import multiprocessing
from pathlib import Path

import pytest
from support.sweeps import judge_many
from support.waiting import PATIENCE

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import read_struct
from slidepack.engine.contract.sweep import Halving, RungResults
from slidepack.engine.lora.halving import Rungs

SPEC = Halving(first_samples=10, eta=3)


@pytest.mark.parametrize(
    ("samples", "rungs"), [(0, 0), (9, 0), (10, 1), (29, 1), (30, 2), (89, 2), (90, 3), (1000, 5)]
)
def test_rungs_are_so_many_times_as_far(tmp_path: Path, samples: int, rungs: int) -> None:
    assert Rungs(SPEC, tmp_path / "rungs.json").reached(samples) == rungs


def test_the_best_third_of_those_that_came_goes_on(tmp_path: Path) -> None:
    rungs = Rungs(SPEC, tmp_path / "rungs.json")
    losses = {"a": 3.0, "b": 4.0, "c": 2.0, "d": 2.5, "e": 1.0, "f": 1.5, "g": 5.0}
    goes_on = [lane for lane, loss in losses.items() if rungs.judge(lane, 1, loss)]
    # The first has nobody to be behind; of two or three one goes on, of six two.
    assert goes_on == ["a", "c", "e", "f"]
    assert rungs.place("d", 1) == (4, 7)
    assert [lane for lane in losses if rungs.stopped_at(lane) == 1] == ["b", "d", "g"]


def test_rungs_are_judged_apart(tmp_path: Path) -> None:
    rungs = Rungs(SPEC, tmp_path / "rungs.json")
    assert rungs.judge("a", 1, 1.0)
    assert not rungs.judge("b", 1, 2.0)
    assert rungs.judge("a", 2, 9.0)
    assert rungs.measured("a") == 2
    assert rungs.measured("b") == 1


def test_a_rung_that_was_skipped_counts_as_measured(tmp_path: Path) -> None:
    rungs = Rungs(SPEC, tmp_path / "rungs.json")
    assert rungs.judge("wide", 2, 1.0)
    assert rungs.measured("wide") == 2
    assert not rungs.judge("late", 1, 1.5)


def test_what_is_no_number_never_goes_on(tmp_path: Path) -> None:
    rungs = Rungs(SPEC, tmp_path / "rungs.json")
    assert not rungs.judge("a", 1, math.nan)
    assert rungs.judge("b", 1, 99.0)
    assert not rungs.judge("c", 1, math.inf)


def test_results_outlive_the_process(tmp_path: Path) -> None:
    path = tmp_path / "rungs.json"
    first = Rungs.restored(SPEC, path)
    first.judge("a", 1, 1.0)
    first.judge("b", 1, 2.0)
    first.judge("c", 1, math.nan)
    again = Rungs.restored(SPEC, path)
    assert [again.measured(lane) for lane in "abcd"] == [1, 1, 1, 0]
    assert [again.stopped_at(lane) for lane in "abcd"] == [0, 1, 1, 0]
    assert again.place("b", 1) == (2, 3)
    path.write_text("{")
    with pytest.raises(SlidepackError, match=r"rungs\.json"):
        Rungs.restored(SPEC, path)


def test_workers_of_one_sweep_see_what_the_others_judged(tmp_path: Path) -> None:
    path = tmp_path / "sweeps" / "1" / "rungs.json"
    here, there = (Rungs.restored(SPEC, path) for _ in range(2))
    assert here.judge("a", 1, 1.0)
    assert not there.judge("b", 1, 2.0)
    assert there.place("b", 1) == (2, 2)
    assert here.judge("c", 1, 0.5)
    assert here.place("c", 1) == (1, 3)
    assert here.stopped_at("b") == 1


def test_no_judgement_of_two_processes_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "rungs.json"
    names = [[str(2 * number + first) for number in range(150)] for first in range(2)]
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2, timeout=PATIENCE)
    workers = [
        context.Process(target=judge_many, args=(SPEC, path, some, barrier)) for some in names
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    found = read_struct(path, RungResults)
    everyone = {name: float(name) for some in names for name in some}
    assert found.rungs == (everyone,)
    # Whatever the order was, of the lowest losses nobody was ever behind a third of the others.
    assert "0" not in found.stopped
    assert len(found.stopped) >= len(everyone) // 3


def test_what_the_disk_refused_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "rungs.json"
    rungs = Rungs.restored(SPEC, path)
    rungs.judge("a", 1, 1.0)
    # A folder in the way of the new content.
    (tmp_path / ".rungs.json.tmp").mkdir()
    with pytest.raises(OSError, match="tmp"):
        rungs.judge("b", 1, 0.5)
    assert rungs.measured("b") == 0
    assert read_struct(path, RungResults).rungs == ({"a": 1.0},)


@pytest.mark.parametrize(("first", "eta"), [(0, 3), (5, 1)])
def test_what_judges_nobody_or_everybody_is_refused(first: int, eta: int) -> None:
    with pytest.raises(ValueError, match="use 1 or more, and 2 or more"):
        Halving(first_samples=first, eta=eta)
