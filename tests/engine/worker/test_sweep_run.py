"""Lanes of a sweep: those that are behind end early, with a result that says so."""

from pathlib import Path

import msgspec
import pytest
from support.full_worker import events_of
from support.pack_runs import (
    adapter_of,
    failure,
    left,
    make_lanes,
    make_pack,
    pack_plan,
    resumed_lane,
    run_here,
    steps_done,
    three_jobs,
)
from support.runs import make_run, run_worker

from slidepack.engine.contract.events import Evaluated, Finished, Warned
from slidepack.engine.contract.job import EvalSpec, JobSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.runfolder import RunFolder, write_structs
from slidepack.engine.contract.sweep import Halving, LaneSweep

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
            eval=EvalSpec(
                selection_fraction=0.2, test_fraction=0.1, every_steps=5, sample_tokens=2
            ),
        )
        for number, rate in enumerate(RATES)
    ]


def _judged(lanes: list[RunFolder], rungs: Path) -> list[RunFolder]:
    """Make lanes members of one sweep."""
    halving = Halving(first_samples=8, eta=2)
    for lane in lanes:
        write_structs({lane.sweep: LaneSweep(rungs=str(rungs), halving=halving)})
    return lanes


def _sweep(root: Path, jobs: list[JobSpec]) -> list[RunFolder]:
    return _judged(list(make_lanes(root / "lanes", jobs).values()), root / "rungs.json")


def _stopped(run: RunFolder) -> list[str]:
    warned = [event for event in events_of(run) if isinstance(event, Warned)]
    return [event.message for event in warned if event.code == "RUN-STOPPED-EARLY"]


def _finished_at(run: RunFolder) -> int:
    (finished,) = [event for event in events_of(run) if isinstance(event, Finished)]
    return finished.steps


def test_lanes_that_are_behind_end_at_a_rung(jobs: list[JobSpec], tmp_path: Path) -> None:
    lanes = _sweep(tmp_path, jobs)
    pack = make_pack(tmp_path / "pack", lanes, pack_plan(jobs))
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
    assert "after 8 samples" in _stopped(lanes[1])[0].lower()
    assert "one of 2 goes on" in _stopped(lanes[1])[0]


def test_the_adapter_of_a_lane_that_ended_early_is_that_of_its_last_step(
    jobs: list[JobSpec], tmp_path: Path
) -> None:
    plan = pack_plan(jobs)
    lanes = _sweep(tmp_path, jobs[:2])
    assert run_here(make_pack(tmp_path / "pack", lanes, plan)) == 0
    assert _finished_at(lanes[1]) == 4
    short = msgspec.structs.replace(jobs[1], steps=4)
    alone = make_lanes(tmp_path / "alone", [short])[short.name]
    assert run_here(make_pack(tmp_path / "alone-pack", [alone], plan)) == 0
    assert adapter_of(lanes[1]) == adapter_of(alone)
    (test,) = [e for e in events_of(lanes[1]) if isinstance(e, Evaluated) and e.split == "test"]
    assert test.step == 4


def test_lanes_of_other_packs_are_judged_together(jobs: list[JobSpec], tmp_path: Path) -> None:
    plan = pack_plan(jobs)
    lanes = _sweep(tmp_path, jobs[:3])
    # The first to come to a rung has nobody to be behind, and in another pack it is not alone.
    for number, lane in enumerate(lanes[:2]):
        assert run_here(make_pack(tmp_path / f"pack-{number}", [lane], plan)) == 0
    assert [_finished_at(lane) for lane in lanes[:2]] == [12, 4]
    # One that is in no sweep shares the passes of one that is.
    free = make_lanes(tmp_path / "free", [jobs[3]])[jobs[3].name]
    assert run_here(make_pack(tmp_path / "pack-2", [lanes[2], free], plan)) == 0
    assert _finished_at(free) == 12
    assert "of 3, and one of 2 goes on" in _stopped(lanes[2])[0]


def _again(root: Path, run: RunFolder, *, last_step: int, rungs: Path) -> RunFolder:
    """Go on with a lane as if it had died right after a checkpoint; what was judged stays."""
    for late in run.list_checkpoints():
        if late.name > f"step-{last_step:08d}":
            for file in late.iterdir():
                file.unlink()
            late.rmdir()
    (lane,) = _judged([resumed_lane(root, run)], rungs)
    return lane


@pytest.mark.full
@pytest.mark.parametrize("last_step", [4, 2])
def test_a_sweep_that_was_cut_short_ends_the_same(
    jobs: list[JobSpec], tmp_path: Path, last_step: int
) -> None:
    jobs = [msgspec.structs.replace(job, checkpoint_every_steps=2) for job in jobs]
    plan = pack_plan(jobs)
    whole = _sweep(tmp_path / "whole", jobs)
    assert run_here(make_pack(tmp_path / "whole-pack", whole, plan)) == 0
    # As if it had been killed after the first rung was judged, and before anybody ended there.
    first = _sweep(tmp_path / "first", jobs)
    assert run_here(make_pack(tmp_path / "first-pack", first, plan)) == 0
    rungs = tmp_path / "first" / "rungs.json"
    again = [_again(tmp_path / "again", run, last_step=last_step, rungs=rungs) for run in first]
    assert run_here(make_pack(tmp_path / "later-pack", again, plan)) == 0
    for resumed, run in zip(again, whole, strict=True):
        assert _finished_at(resumed) == _finished_at(run)
        assert adapter_of(resumed) == adapter_of(run)
        assert bool(_stopped(resumed)) == bool(_stopped(run))


def test_a_sweep_that_cannot_be_read_fails_its_own_lane_only(
    jobs: list[JobSpec], tmp_path: Path
) -> None:
    lanes = list(make_lanes(tmp_path / "lanes", jobs[:2]).values())
    (tmp_path / "rungs.json").write_text("{")
    _judged(lanes[:1], tmp_path / "rungs.json")
    pack = make_pack(tmp_path / "pack", lanes, pack_plan(jobs))
    assert run_here(pack) == 0
    assert failure(lanes[0]).error.code == "RUN-FOLDER-BROKEN"
    assert _finished_at(lanes[1]) == 12


@pytest.mark.full
def test_runs_of_their_own_are_judged_like_lanes(jobs: list[JobSpec], tmp_path: Path) -> None:
    rungs = tmp_path / "rungs.json"
    runs = _judged([make_run(tmp_path / job.name, job) for job in jobs[:2]], rungs)
    for run in runs:
        identity = msgspec.structs.replace(run.read_identity(), job_id=run.root.name)
        write_structs({run.identity: identity})
        assert run_worker(run) == 0, run.log.read_text()
    assert [_finished_at(run) for run in runs] == [12, 4]
    assert "number 2 of 2, and one of 2 goes on" in _stopped(runs[1])[0]
    # A pack that comes later judges by what they measured.
    (lane,) = _judged(list(make_lanes(tmp_path / "lanes", jobs[3:]).values()), rungs)
    assert run_here(make_pack(tmp_path / "pack", [lane], pack_plan(jobs))) == 0
    assert "of 3, and one of 2 goes on" in _stopped(lane)[0]
    # It died after it was judged, and goes on from a checkpoint before its last step.
    (again,) = _judged([_resumed_run(tmp_path / "again", runs[1], last_step=4)], rungs)
    assert run_worker(again) == 0, again.log.read_text()
    assert _finished_at(again) == 4
    assert adapter_of(again) == adapter_of(runs[1])


def _resumed_run(root: Path, run: RunFolder, *, last_step: int) -> RunFolder:
    kept = tuple(str(p) for p in run.list_checkpoints() if p.name <= f"step-{last_step:08d}")
    again = make_run(root, run.read_spec(), attempt=2, resume_from=kept)
    identity = msgspec.structs.replace(again.read_identity(), job_id=run.root.name)
    write_structs({again.identity: identity})
    return again
