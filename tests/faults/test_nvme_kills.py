"""Full fine-tuning with its state on a drive, under kills and failing drives."""

import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.disks import small_disk
from support.full_worker import curve, events_of, finish, held_out, start
from support.kills import Chain, kill_after, started, unfinished
from support.runs import make_run, tiny_spec
from support.tier_runs import make_tier_run
from support.waiting import wait_until
from torch import Tensor

from slidepack.engine.contract.errors import CATALOGUE, EXIT_YIELDED, SlidepackError
from slidepack.engine.contract.events import Failed, Warned, Yielded
from slidepack.engine.contract.job import FullMethod, JobSpec, OptimSpec
from slidepack.engine.contract.runfolder import RunFolder, write_atomic
from slidepack.engine.shape import read_shape
from slidepack.engine.sliding.state import units_of
from slidepack.engine.tier_folders import OURS, take_folder, tier_folder
from slidepack.engine.worker.stored_unit import StoredUnit
from slidepack.engine.worker.tier import TierFolders

STEPS = 16


def _spec(base: Path, **changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "method": FullMethod(),
        "optim": OptimSpec(lr=2e-3, weight_decay=0.1),
        "steps": STEPS,
        "checkpoint_every_steps": 3,
    }
    return tiny_spec(base, **(values | changes))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model and dataset, shared by the runs of this module."""
    return tmp_path_factory.mktemp("nvme-kills")


@pytest.fixture(scope="module")
def whole(base: Path) -> RunFolder:
    """An uninterrupted run whose state is in RAM."""
    folder = make_run(base / "whole", _spec(base))
    finish(folder)
    return folder


def _state_in(folder: RunFolder, checkpoint: Path) -> list[dict[str, Tensor]]:
    """Return every tensor of a checkpoint, whatever files it is in."""
    spec = folder.read_spec()
    found = []
    for index, unit in enumerate(units_of(read_shape(Path(spec.base.path)))):
        with StoredUnit(checkpoint, index, unit.elements) as stored:
            pieces = [values for _, values in stored.pieces()]
        found.append({name: torch.cat([one[name] for one in pieces]) for name in pieces[0]})
    return found


def _assert_same_end(whole: RunFolder, *attempts: RunFolder) -> None:
    """Hold a run in attempts to an uninterrupted one in RAM, bit for bit."""
    assert curve(*attempts) == curve(whole)
    assert held_out(*attempts) == held_out(whole)
    name = "model/model.safetensors"
    assert (attempts[-1].result / name).read_bytes() == (whole.result / name).read_bytes()
    newest = next(path for one in reversed(attempts) for path in one.list_checkpoints())
    last = whole.list_checkpoints()[0]
    assert newest.name == last.name
    for one, other in zip(_state_in(whole, newest), _state_in(whole, last), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def _on(drive: Path, shares: Callable[[], float]) -> Callable[..., RunFolder]:
    """Return what makes attempts with a share of their state on a drive."""

    def make(root: Path, spec: JobSpec, attempt: int, resume_from: tuple[str, ...]) -> RunFolder:
        return make_tier_run(
            root, spec, drive, share=shares(), attempt=attempt, resume_from=resume_from
        )

    return make


def _went_on(chains: list[Chain]) -> bool:
    return any(started(one).from_step for chain in chains for one in chain.attempts[1:])


@pytest.mark.quick
@pytest.mark.timeout(2700)
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 5), pytest.param(2, 50, marks=pytest.mark.full)], ids=["5", "50"]
)
def test_killed_inside_steps_the_end_is_the_same(
    base: Path, whole: RunFolder, seed: int, kills: int
) -> None:
    moments = random.Random(seed)
    root, spec = base / f"killed-{seed}", whole.read_spec()
    # Another attempt may have more RAM, or less: what is on the drive is taken over either way.
    make = _on(root / "drive", lambda: moments.choice((1.0, 1.0, 0.4)))
    chains = [Chain(root / "0", spec, make)]
    seconds = events_of(whole)[-1].at - started(whole).at
    done = 0
    # A worker that is killed before its first checkpoint shows nothing of going on.
    while done < kills or not _went_on(chains):
        folder = chains[-1].next()
        worker = start(folder)
        kill_after(folder, worker, moments.uniform(0.0, 1.5 * seconds), started=True)
        if worker.poll() == 0:
            chains.append(Chain(root / str(len(chains)), spec, make))
            continue
        assert worker.poll() == -signal.SIGKILL, folder.log.read_text()
        done += 1
    if chains[-1].attempts:
        finish(chains[-1].next())
    else:
        chains.pop()
    for chain in chains:
        _assert_same_end(whole, *chain.attempts)
        assert not unfinished(chain.attempts[-1])
    assert not list((root / "drive").iterdir()), "only checkpoints are left"


def _stopped_at(folder: RunFolder, step: int) -> None:
    """Run until a checkpoint of this step, and kill before there is another."""
    worker = start(folder, halt_at=step + 1)
    wait_until(
        lambda: any(path.name == f"step-{step:08d}" for path in folder.list_checkpoints()),
        what=f"the checkpoint of step {step} is there",
    )
    worker.send(signal.SIGKILL)
    worker.wait()


@pytest.mark.parametrize(
    "shares",
    [(1.0, 0.0), (0.0, 1.0), pytest.param((0.4, 1.0), marks=pytest.mark.full)],
    ids=["drive-to-ram", "ram-to-drive", "some-to-all"],
)
def test_a_plan_that_changed_goes_on_from_either_form(
    base: Path, whole: RunFolder, shares: tuple[float, float], tmp_path: Path
) -> None:
    queue = iter(shares)
    chain = Chain(tmp_path / "job", whole.read_spec(), _on(tmp_path / "drive", lambda: next(queue)))
    _stopped_at(chain.next(), 3)
    finish(chain.next())
    assert started(chain.attempts[1]).from_step >= 3
    _assert_same_end(whole, *chain.attempts)


def test_wear_is_told_once_with_its_hours(base: Path, tmp_path: Path) -> None:
    spec = _spec(base, steps=5)
    make = _on(tmp_path / "drive", lambda: 1.0)
    chain = Chain(tmp_path / "job", spec, make)
    first = chain.next()
    plan = first.read_plan()
    assert plan.full is not None
    assert plan.full.nvme is not None
    wearing = msgspec.structs.replace(
        plan.full.nvme, step_write_bytes=3_000_000, rated_write_bytes=1e12, rated_source="its label"
    )
    full = msgspec.structs.replace(plan.full, nvme=wearing)
    data = msgspec.json.encode(msgspec.structs.replace(plan, full=full))
    write_atomic(first.plan, data)
    _stopped_at(first, 3)
    second = chain.next()
    write_atomic(second.plan, data)
    finish(second)
    told = [
        event.message
        for folder in chain.attempts
        for event in events_of(folder)
        if isinstance(event, Warned) and event.code == "DISK-WEAR"
    ]
    assert len(told) == 1
    assert "Each step writes 3 MB to the drives, all steps 15 MB" in told[0]
    assert "rated for 1 TB (its label)" in told[0]
    assert re.search(r"reached after 333,333 steps, [\d,]+ hours", told[0]), told[0]


def test_copies_of_checkpoints_must_fit_before_the_start(base: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        folder = make_tier_run(disk.mount / "job" / "1", _spec(base), tmp_path / "drive")
        # Room for one copy, not for those of every checkpoint that is kept.
        disk.fill(1536 << 10)
        assert start(folder).wait() == CATALOGUE["DISK-FULL"].exit_code, folder.log.read_text()
        failed = events_of(folder)[-1]
        assert isinstance(failed, Failed)
        assert "copies" in failed.error.what
        assert not curve(folder)
        assert not list((tmp_path / "drive").iterdir())
        disk.free()
        again = make_tier_run(disk.mount / "job" / "2", _spec(base), tmp_path / "drive")
        finish(again)
        assert len(again.list_checkpoints()) == 2
        assert not [event for event in events_of(again) if isinstance(event, Failed)]


def test_a_bit_that_flips_on_the_drive_is_found(
    base: Path, whole: RunFolder, tmp_path: Path
) -> None:
    chain = Chain(tmp_path / "job", whole.read_spec(), _on(tmp_path / "drive", lambda: 1.0))
    first = chain.next()
    _stopped_at(first, 6)
    moved_by = started(first).drives
    assert re.match(r"ring: .+ threads a direction; the state passes through RAM", moved_by)
    newest = first.list_checkpoints()[0]
    file = next(newest.glob("*.state-0"))
    with file.open("r+b") as data:
        (byte,) = data.read(1)
        data.seek(0)
        data.write(bytes([byte ^ 1]))
    second = chain.next()
    finish(second)
    codes = [event.code for event in events_of(second) if isinstance(event, Warned)]
    assert codes == ["RUN-CHECKPOINT-CORRUPT"]
    assert started(second).from_step == 3
    _assert_same_end(whole, *chain.attempts)


def test_a_drive_without_room_is_refused_before_the_start(base: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        folder = make_tier_run(tmp_path / "job" / "1", _spec(base), disk.mount)
        disk.fill(300 << 10)
        assert start(folder).wait() == CATALOGUE["DISK-FULL"].exit_code, folder.log.read_text()
        failed = events_of(folder)[-1]
        assert isinstance(failed, Failed)
        assert failed.error.code == "DISK-FULL"
        assert not curve(folder)


def test_a_drive_that_becomes_read_only_is_an_error_and_the_checkpoint_goes_on(
    base: Path, whole: RunFolder, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        make = _on(disk.mount / "drive", lambda: 1.0)
        chain = Chain(disk.mount / "job", whole.read_spec(), make)
        first = chain.next()
        _stopped_at(first, 3)
        second = chain.next()
        disk.remount("ro")
        assert start(second).wait() != 0
        disk.remount("rw")
        shutil.rmtree(second.root)
        chain.attempts.pop()
        third = chain.next()
        finish(third)
        assert not [event for event in events_of(third) if isinstance(event, Warned)]
        _assert_same_end(whole, *chain.attempts)


def test_a_folder_that_cannot_be_cleared_does_not_hide_how_a_run_ended(
    base: Path, tmp_path: Path
) -> None:
    drive = tmp_path / "drive"
    folder = make_tier_run(tmp_path / "job" / "1", _spec(base, steps=500), drive)
    mine = tier_folder(drive, folder.root.parent)
    worker = start(folder, halt_at=12)
    wait_until(lambda: bool(folder.list_checkpoints()) or worker.poll() is not None)
    # Refuses to be unlinked, as all files of a drive do that has become read-only.
    (mine / "00000-999999.state").mkdir()
    worker.send(signal.SIGTERM)
    assert worker.wait() == EXIT_YIELDED, folder.log.read_text()
    assert isinstance(events_of(folder)[-1], Yielded)
    left = sorted(path.name for path in mine.iterdir())
    assert left == ["00000-999999.state", "slidepack.lock"], "its own went all the same"
    assert str(mine) in folder.log.read_text()


def test_a_drive_that_is_away_is_named_and_nothing_is_made_in_its_place(
    base: Path, tmp_path: Path
) -> None:
    away = tmp_path / "mnt" / "fast"
    folder = make_tier_run(tmp_path / "job" / "1", _spec(base), away)
    away.rmdir()
    assert start(folder).wait() == CATALOGUE["DISK-UNWRITABLE"].exit_code, folder.log.read_text()
    failed = events_of(folder)[-1]
    assert isinstance(failed, Failed)
    assert str(away) in failed.error.why
    assert "`nvme_folders`" in failed.error.fix
    assert not away.exists()


@pytest.mark.quick
def test_two_names_of_one_folder_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    (tmp_path / "same").symlink_to(tmp_path / "drive")
    with pytest.raises(SlidepackError, match=r"RUN-SPEC-INVALID.*same"):
        TierFolders([tmp_path / "drive", tmp_path / "same"], tmp_path / "job")
    assert not list((tmp_path / "drive").iterdir())


def test_a_worker_leaves_what_is_not_ours_and_another_workers_folder(
    base: Path, tmp_path: Path
) -> None:
    drive = tmp_path / "drive"
    theirs = drive / "run-20260101_120000-abc123"
    theirs.mkdir(parents=True)
    (theirs / "results.csv").write_text("mine")
    folder = make_tier_run(tmp_path / "job" / "1", _spec(base, steps=2), drive)
    other = tier_folder(drive, tmp_path / "another job")
    with open(take_folder(other), "wb"):
        finish(folder)
        assert list((drive / OURS).iterdir()) == [other]
    with open(take_folder(mine := tier_folder(drive, folder.root.parent)), "wb"):
        with pytest.raises(SlidepackError, match="RUN-FOLDER-BUSY"):
            TierFolders([drive], folder.root.parent, wait_seconds=0.0)
        assert mine.exists()
    assert (theirs / "results.csv").read_text() == "mine"
