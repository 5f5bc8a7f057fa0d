"""Packs under kills, stops and lanes that fail: each lane ends as if nothing had happened to it."""

import os
import random
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.full_worker import curve, events_of
from support.pack_runs import (
    adapter_of,
    assert_yielded,
    failure,
    finish_pack,
    joined,
    lane_run,
    left,
    make_lanes,
    make_pack,
    measured,
    pack_events,
    pack_plan,
    resumed_lane,
    run_here,
    start_pack,
    steps_done,
    three_jobs,
)
from support.waiting import wait_until

from slidepack.engine.contract.errors import EXIT_YIELDED
from slidepack.engine.contract.events import Finished, Started, Warned, Yielded
from slidepack.engine.contract.job import (
    DatasetRef,
    FullMethod,
    JobSpec,
    LoraMethod,
    ModelRef,
    OptimSpec,
)
from slidepack.engine.contract.pack import PackFolder
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.worker.lock import take_lock

STEPS = 14


@dataclass(frozen=True)
class Whole:
    """Lanes of a pack that nothing befell."""

    specs: Mapping[str, JobSpec]
    plan: RunPlan
    runs: Mapping[str, RunFolder]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    root = tmp_path_factory.mktemp("packs")
    specs = three_jobs(root, steps=STEPS, checkpoint_every_steps=3, batch_size=1)
    plan = pack_plan(list(specs.values()))
    runs = make_lanes(root / "lanes", specs.values())
    assert run_here(make_pack(root / "pack", runs.values(), plan)) == 0
    return Whole(specs, plan, runs)


@dataclass
class _Chain:
    """Attempts at the same lanes, each going on from the checkpoints of those before."""

    root: Path
    whole: Whole
    packs: list[PackFolder] = field(default_factory=list)
    attempts: dict[str, list[RunFolder]] = field(default_factory=dict)

    def next(self) -> PackFolder:
        """Make run folders and a pack for those that are not done."""
        root = self.root / str(len(self.packs) + 1)
        if self.attempts:
            runs = {name: resumed_lane(root, *self.attempts[name]) for name in self.unfinished}
        else:
            runs = make_lanes(root, self.whole.specs.values())
        for name, run in runs.items():
            self.attempts.setdefault(name, []).append(run)
        self.packs.append(make_pack(root / "pack", runs.values(), self.whole.plan))
        return self.packs[-1]

    @property
    def unfinished(self) -> list[str]:
        """The lanes that have something left to do."""
        return [name for name in self.whole.specs if not self._is_done(name)]

    def _is_done(self, name: str) -> bool:
        events = [event for run in self.attempts.get(name, ()) for event in events_of(run)]
        return bool(events) and isinstance(events[-1], Finished)

    def assert_same_end(self) -> None:
        """Hold every step, measurement, tensor and result to those of the whole pack."""
        assert not self.unfinished
        for name, tried in self.attempts.items():
            judge, last = self.whole.runs[name], tried[-1]
            assert curve(*tried) == curve(judge)
            assert measured(*tried) == measured(judge)
            assert lane_run(last).result == lane_run(judge).result
            # One that only had its result left to write made no checkpoint.
            newest = next(path for run in reversed(tried) for path in run.list_checkpoints())
            tensors = (newest / "lane.safetensors").read_bytes()
            assert tensors == lane_run(judge).checkpoints[newest.name]
            assert not list(last.checkpoints.glob(".*")), "nothing half written is left"

    @property
    def resumed(self) -> int:
        """How many attempts went on from a checkpoint."""
        found = [
            event for tried in self.attempts.values() for run in tried for event in events_of(run)
        ]
        return sum(isinstance(event, Started) and event.from_step > 0 for event in found)


def _kill_at_random(chain: _Chain, moments: random.Random) -> bool:
    """Kill an attempt at a random event of a random lane; return whether it came so far."""
    pack = chain.next()
    name = moments.choice(chain.unfinished)
    run = chain.attempts[name][-1]
    done = max(map(steps_done, chain.attempts[name]))
    # What is left of the events of an uninterrupted run, from reading the data to the result.
    left_over = len(events_of(chain.whole.runs[name])) * (STEPS + 1 - done) // (STEPS + 1)
    count = moments.randrange(left_over)
    worker = start_pack(pack)

    def reached() -> bool:
        return len(events_of(run)) >= count and bool(pack_events(pack))

    try:
        wait_until(lambda: worker.poll() is not None or reached(), what=f"{count} events")
    finally:
        worker.send(signal.SIGKILL)
    code = worker.wait()
    assert code in (0, -signal.SIGKILL), pack.log.read_text()
    return code != 0


@pytest.mark.quick
@pytest.mark.parametrize(
    ("seed", "kills"), [(4, 2), pytest.param(2, 10, marks=pytest.mark.full)], ids=["2", "10"]
)
def test_killed_at_random_moments_every_lane_ends_the_same(
    tmp_path: Path, whole: Whole, seed: int, kills: int
) -> None:
    moments = random.Random(seed)
    chains = [_Chain(tmp_path / "0", whole)]
    killed = 0
    while killed < kills:
        killed += _kill_at_random(chains[-1], moments)
        if not chains[-1].unfinished:
            chains.append(_Chain(tmp_path / str(len(chains)), whole))
    if chains[-1].attempts:
        finish_pack(chains[-1].next())
    else:
        chains.pop()
    for chain in chains:
        chain.assert_same_end()
    assert sum(chain.resumed for chain in chains), "some went on from a checkpoint"


def test_a_signal_in_the_middle_of_steps_checkpoints_every_lane(
    tmp_path: Path, whole: Whole
) -> None:
    chain = _Chain(tmp_path, whole)
    pack = chain.next()
    worker = start_pack(pack, halt_at=4)
    runs = [run for (run,) in chain.attempts.values()]
    wait_until(
        lambda: worker.poll() is not None or min(map(steps_done, runs)) > 1,
        what="every lane has some steps",
    )
    worker.send(signal.SIGTERM)
    assert worker.wait() == EXIT_YIELDED, pack.log.read_text()
    for run in runs:
        assert_yielded(run, "SIGTERM")
        assert 0 < steps_done(run) < STEPS
    assert left(pack) == dict.fromkeys("abc", "SIGTERM")
    last = pack_events(pack)[-1]
    assert isinstance(last, Yielded)
    assert last.reason == "SIGTERM"
    finish_pack(chain.next())
    chain.assert_same_end()
    for before, after in chain.attempts.values():
        assert min(curve(after)) == steps_done(before) + 1, "no step is done twice"


def _failing_specs(good: JobSpec, root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield, by the error's code and a word of its reason, what to change in a job."""
    gone = DatasetRef(dataset_id="d", path=str(root / "gone.jsonl"), content_hash="-")
    yield "DATA-NOT-FOUND gone.jsonl", {"dataset": gone}
    changed = msgspec.structs.replace(good.dataset, content_hash="0" * 64)
    yield "DATA-CHANGED 000000000000", {"dataset": changed}
    other = ModelRef(model_id="other", path=good.base.path, content_hash="another")
    yield "RUN-PACK-MISMATCH other", {"base": other}
    yield "RUN-PACK-MISMATCH every", {"method": FullMethod()}
    yield "RUN-PACK-MISMATCH bf16", {"method": LoraMethod(base_precision="bf16")}
    yield "RUN-PACK-MISMATCH 161", {"max_seq_len": 161}
    wild = OptimSpec(lr=1.0, schedule="constant", warmup_fraction=0.0, clip_norm=0.0)
    method = LoraMethod(rank=2, alpha=1_000_000_000_000)
    yield "RUN-DIVERGED number", {"optim": wild, "method": method}


def test_a_lane_that_fails_takes_no_other_with_it(tmp_path: Path, whole: Whole) -> None:
    good = whole.specs["c"]
    failing = dict(_failing_specs(good, tmp_path))
    specs = [
        msgspec.structs.replace(good, name=name, **changes) for name, changes in failing.items()
    ]
    bad = make_lanes(tmp_path, specs)
    places = ("busy", "broken", "absent", "unwritable")
    bad |= make_lanes(tmp_path, [msgspec.structs.replace(good, name=name) for name in places])
    lock = take_lock(bad["busy"].lock)
    bad["broken"].spec.write_text('{"name": ')
    shutil.rmtree(bad["absent"].root)
    shutil.rmtree(bad["unwritable"].checkpoints)
    bad["unwritable"].checkpoints.write_text("a file is no folder")
    runs = make_lanes(tmp_path / "good", whole.specs.values())

    pack = make_pack(tmp_path / "pack", [*runs.values(), *bad.values()], whole.plan)
    finish_pack(pack)
    os.close(lock)
    assert left(pack) == {
        **dict.fromkeys("abc", "done"),
        **{name: name.split()[0] for name in failing},
        "busy": "RUN-FOLDER-BUSY",
        "broken": "RUN-FOLDER-BROKEN",
        "absent": "RUN-FOLDER-BROKEN",
        "unwritable": "DISK-UNWRITABLE",
    }
    assert set(joined(pack)) == {*"abc", "RUN-DIVERGED number", "unwritable"}
    for name in failing:
        error = failure(bad[name]).error
        assert error.code == name.split()[0]
        assert name.split()[1] in f"{error.what} {error.why}"
        assert error.fix
    assert failure(bad["broken"]).error.code == "RUN-FOLDER-BROKEN"
    assert failure(bad["unwritable"]).error.code == "DISK-UNWRITABLE"
    assert steps_done(bad["unwritable"]) == 3, "its first checkpoint is the first that is refused"
    assert not bad["busy"].events.exists()
    assert not bad["absent"].root.exists()
    for name, run in runs.items():
        assert lane_run(run) == lane_run(whole.runs[name])


@pytest.mark.parametrize(
    "damage",
    ["flipped bit", pytest.param("no state", marks=pytest.mark.full)],
)
def test_a_damaged_newest_checkpoint_of_a_lane_is_named_and_the_one_before_taken(
    tmp_path: Path, whole: Whole, damage: str
) -> None:
    source = whole.runs["c"]
    (copy,) = make_lanes(tmp_path / "copies", [whole.specs["c"]]).values()
    shutil.copytree(source.checkpoints, copy.checkpoints, dirs_exist_ok=True)
    newest, before = copy.list_checkpoints()
    if damage == "no state":
        (newest / "state.json").unlink()
    else:
        tensors = newest / "lane.safetensors"
        content = bytearray(tensors.read_bytes())
        content[len(content) // 2] ^= 1
        tensors.write_bytes(content)
    resumed = resumed_lane(tmp_path / "resumed", copy)
    others = make_lanes(tmp_path / "others", [whole.specs["a"]])
    assert run_here(make_pack(tmp_path / "pack", [resumed, others["a"]], whole.plan)) == 0
    (warning,) = [event for event in events_of(resumed) if isinstance(event, Warned)]
    assert warning.code == "RUN-CHECKPOINT-CORRUPT"
    assert str(newest) in warning.message
    (started,) = [event for event in events_of(resumed) if isinstance(event, Started)]
    assert (started.from_step, started.resumed_from) == (12, str(before))
    assert adapter_of(resumed) == adapter_of(source)
    assert lane_run(others["a"]).story == lane_run(whole.runs["a"]).story
