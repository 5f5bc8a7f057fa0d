"""Full fine-tuning under kills, damaged checkpoints and a full disk: the end stays the same."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.disks import small_disk
from support.full_worker import (
    Worker,
    assert_same_end,
    curve,
    events_of,
    finish,
    start,
)
from support.kills import Chain, kill_after, started, unfinished
from support.runs import make_run, tiny_spec
from support.waiting import wait_until

from slidepack.engine.contract.errors import CATALOGUE
from slidepack.engine.contract.events import Failed, Finished, Warned
from slidepack.engine.contract.job import FullMethod, JobSpec, OptimSpec
from slidepack.engine.contract.runfolder import RunFolder

STEPS = 24


def _spec(base: Path, **changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "method": FullMethod(),
        "optim": OptimSpec(lr=2e-3, weight_decay=0.1),
        "steps": STEPS,
        "checkpoint_every_steps": 1,
    }
    return tiny_spec(base, **(values | changes))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model and dataset, shared by the runs of this module."""
    return tmp_path_factory.mktemp("full-kills")


@pytest.fixture(scope="module")
def whole(base: Path) -> RunFolder:
    """An uninterrupted run."""
    folder = make_run(base / "whole", _spec(base))
    finish(folder)
    return folder


def _kill_while_saving(folder: RunFolder, worker: Worker) -> None:
    """Kill when a checkpoint after the first few is half written."""
    wait_until(lambda: folder.list_checkpoints() or worker.poll() is not None)
    while worker.poll() is None:
        if any(file for saving in unfinished(folder) for file in saving.glob("unit-*")):
            worker.send(signal.SIGKILL)
            worker.wait()


def _killed(root: Path, whole: RunFolder, seed: int, kills: int) -> tuple[list[Chain], int]:
    """Kill runs at random moments, then let the last one end; return how many died saving too."""
    spec, moments = whole.read_spec(), random.Random(seed)
    begin, end = started(whole).at, events_of(whole)[-1].at
    chains = [Chain(root / "0", spec)]
    done = saving = 0
    while done < kills:
        folder = chains[-1].next()
        worker = start(folder)
        if done % 3 == 1:
            _kill_while_saving(folder, worker)
        else:
            seconds = moments.uniform(0.0, 0.8 * (end - begin))
            kill_after(folder, worker, seconds, started=moments.random() < 0.9)
        if worker.poll() == 0:
            chains.append(Chain(root / str(len(chains)), spec))
            continue
        assert worker.poll() == -signal.SIGKILL, folder.log.read_text()
        done += 1
        saving += bool(unfinished(folder))
    if chains[-1].attempts:
        finish(chains[-1].next())
    else:
        chains.pop()
    return chains, saving


@pytest.mark.quick
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 3), pytest.param(2, 20, marks=pytest.mark.full)], ids=["3", "20"]
)
def test_killed_at_random_moments_the_end_is_the_same(
    base: Path, whole: RunFolder, seed: int, kills: int
) -> None:
    chains, saving = _killed(base / f"killed-{seed}", whole, seed, kills)
    assert saving, "some checkpoints were being written"
    for chain in chains:
        assert_same_end(whole, *chain.attempts)
        assert not unfinished(chain.attempts[-1])
        assert len(chain.attempts[-1].list_checkpoints()) <= 2
    assert any(started(chain.attempts[-1]).from_step for chain in chains), "from a checkpoint"


def _flip(folder: Path) -> None:
    file = folder / "unit-00003.safetensors"
    content = bytearray(file.read_bytes())
    content[-1000] ^= 0x10
    file.write_bytes(content)


def _truncate(folder: Path) -> None:
    file = folder / "unit-00001.safetensors"
    os.truncate(file, file.stat().st_size - 1)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped bit": _flip,
    "truncated unit": _truncate,
    "missing unit": lambda folder: (folder / "unit-00002.safetensors").unlink(),
    "broken state": lambda folder: (folder / "state.json").write_text('{"step": 24'),
}


@pytest.fixture(scope="module")
def short(base: Path) -> RunFolder:
    """An uninterrupted run of a few steps, whose two checkpoints are damaged in copies."""
    folder = make_run(base / "short", _spec(base, steps=6, checkpoint_every_steps=2))
    finish(folder)
    assert [path.name for path in folder.list_checkpoints()] == ["step-00000006", "step-00000004"]
    return folder


def _damaged(root: Path, source: RunFolder, *damages: str) -> RunFolder:
    """Damage copies of the checkpoints, newest first; make an attempt that has only them."""
    copies = []
    for number, checkpoint in enumerate(source.list_checkpoints()):
        copy = Path(shutil.copytree(checkpoint, root / "copies" / checkpoint.name))
        if number < len(damages):
            DAMAGES[damages[number]](copy)
        copies.append(str(copy))
    spec = source.read_spec()
    return make_run(root / "resumed", spec, attempt=2, resume_from=tuple(copies))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_taken(
    tmp_path: Path, short: RunFolder, damage: str
) -> None:
    folder = _damaged(tmp_path, short, damage)
    finish(folder)
    events = events_of(folder)
    (warning,) = [event for event in events if isinstance(event, Warned)]
    assert warning.code == "RUN-CHECKPOINT-CORRUPT"
    newest, before = folder.read_identity().resume_from
    assert newest in warning.message
    begun = started(folder)
    assert (begun.from_step, begun.resumed_from) == (4, before)
    assert list(curve(folder)) == [5, 6]
    assert_same_end_from(short, folder)


def assert_same_end_from(whole: RunFolder, resumed: RunFolder) -> None:
    """Hold the steps that were done again, and the end, to the run they come from."""
    expected = curve(whole)
    assert all(point == expected[step] for step, point in curve(resumed).items())
    assert_same_end(whole, whole, resumed)


def test_with_every_checkpoint_damaged_it_starts_from_the_base(
    tmp_path: Path, short: RunFolder
) -> None:
    # The bit is in the last unit: by then the others, and all moments, are of the checkpoint.
    folder = _damaged(tmp_path, short, "flipped bit", "flipped bit")
    finish(folder)
    events = events_of(folder)
    warned = [event.code for event in events if isinstance(event, Warned)]
    assert warned == ["RUN-CHECKPOINT-CORRUPT"] * 2
    begun = started(folder)
    assert (begun.from_step, begun.resumed_from) == (0, "")
    assert_same_end(short, folder)


@pytest.mark.quick
def test_a_full_disk_leaves_the_earlier_checkpoints(tmp_path: Path) -> None:
    spec = _spec(tmp_path, steps=120, checkpoint_every_steps=4)
    whole = make_run(tmp_path / "whole", spec)
    finish(whole)
    one = sum(path.stat().st_size for path in whole.list_checkpoints()[0].iterdir())
    with small_disk(tmp_path / "disk", 16) as disk:
        chain = Chain(disk.mount, spec)
        first = chain.next()
        worker = start(first, halt_at=6)
        wait_until(lambda: first.list_checkpoints() or worker.poll() is not None)
        disk.fill(one // 2)
        worker.send(signal.SIGCONT)
        assert worker.wait() == CATALOGUE["DISK-FULL"].exit_code, first.log.read_text()
        failed = events_of(first)[-1]
        assert isinstance(failed, Failed)
        assert failed.error.code == "DISK-FULL"
        assert first.list_checkpoints(), "the earlier ones are there"
        assert not unfinished(first), "half of one would only take up room"
        disk.free()
        second = chain.next()
        finish(second)
        assert not [event for event in events_of(second) if isinstance(event, Warned)]
        assert started(second).resumed_from == str(first.list_checkpoints()[0])
        assert isinstance(events_of(second)[-1], Finished)
        assert_same_end(whole, first, second)
