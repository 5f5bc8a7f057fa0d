"""A pack that is a sweep: lanes that are behind end early, with a result that says so."""

from pathlib import Path

import msgspec
import pytest
from support.full_worker import events_of
from support.pack_runs import (
    adapter_of,
    left,
    make_lanes,
    make_pack,
    pack_plan,
    resumed_lane,
    run_here,
    steps_done,
    three_jobs,
)

from slidepack.engine.contract.events import Evaluated, Finished, Warned
from slidepack.engine.contract.job import EvalSpec, JobSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.pack import Halving, PackFolder, PackSpec
from slidepack.engine.contract.runfolder import RunFolder, write_atomic

RATES = (3e-2, 1e-5, 1e-3, 2e-5)
"""Peak learning rates; the first learns most in so few steps."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[JobSpec]:
    job = three_jobs(tmp_path_factory.mktemp("jobs"), dropout=0.0)["a"]
    return [
        msgspec.structs.replace(
            job,
            name=f"lr-{number}",
            method=LoraMethod(rank=4),
            optim=OptimSpec(lr=rate, schedule="constant", warmup_fraction=0.0),
            steps=12,
            batch_size=2,
            eval=EvalSpec(selection_fraction=0.2, every_steps=5, sample_tokens=2),
        )
        for number, rate in enumerate(RATES)
    ]


def _sweep(root: Path, lanes: list[RunFolder], jobs: list[JobSpec]) -> PackFolder:
    pack = make_pack(root, lanes, pack_plan(jobs))
    spec = msgspec.structs.replace(pack.read_pack(), halving=Halving(first_samples=8, eta=2))
    assert isinstance(spec, PackSpec)
    write_atomic(pack.pack, msgspec.json.encode(spec))
    return pack


def _stopped(run: RunFolder) -> list[str]:
    warned = [event for event in events_of(run) if isinstance(event, Warned)]
    return [event.message for event in warned if event.code == "RUN-STOPPED-EARLY"]


def _finished_at(run: RunFolder) -> int:
    (finished,) = [event for event in events_of(run) if isinstance(event, Finished)]
    return finished.steps


def test_lanes_that_are_behind_end_at_a_rung(jobs: list[JobSpec], tmp_path: Path) -> None:
    lanes = list(make_lanes(tmp_path / "lanes", jobs).values())
    pack = _sweep(tmp_path / "pack", lanes, jobs)
    assert run_here(pack) == 0
    assert set(left(pack).values()) == {"done"}
    ends = [steps_done(run) for run in lanes]
    # Rungs are at 8 and 16 samples, steps of two: the best goes through, and one more at most.
    assert ends[0] == 12
    assert ends[1] == ends[3] == 4
    for run, steps in zip(lanes, ends, strict=True):
        assert _finished_at(run) == steps
        measured = [event.step for event in events_of(run) if isinstance(event, Evaluated)]
        # At a rung it is measured though its own schedule has no evaluation there.
        assert 4 in measured
        assert bool(_stopped(run)) == (steps < 12)
        assert adapter_of(run)
    assert "after 8 samples" in _stopped(lanes[1])[0].lower()
    assert "one of 2 goes on" in _stopped(lanes[1])[0]


def test_a_sweep_that_was_cut_short_ends_the_same(jobs: list[JobSpec], tmp_path: Path) -> None:
    whole = list(make_lanes(tmp_path / "whole", jobs).values())
    assert run_here(_sweep(tmp_path / "whole-pack", whole, jobs)) == 0
    # As if it had been killed after the first rung: results are there, lanes at a checkpoint.
    first = list(make_lanes(tmp_path / "first", jobs).values())
    pack = _sweep(tmp_path / "first-pack", first, jobs)
    assert run_here(pack) == 0
    again = []
    for run in first:
        for late in run.list_checkpoints():
            if late.name > "step-00000004":
                for file in late.iterdir():
                    file.unlink()
                late.rmdir()
        again.append(resumed_lane(tmp_path / "again", run))
    later = _sweep(tmp_path / "later-pack", again, jobs)
    write_atomic(later.rungs, pack.rungs.read_bytes())
    assert run_here(later) == 0
    for resumed, run in zip(again, whole, strict=True):
        assert _finished_at(resumed) == _finished_at(run)
        assert adapter_of(resumed) == adapter_of(run)
        assert bool(_stopped(resumed)) == bool(_stopped(run))
