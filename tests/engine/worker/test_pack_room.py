"""What a lack of room, or a lane that cannot begin, does to the lanes beside it: nothing."""

import fcntl
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.full_worker import events_of
from support.pack_runs import (
    assert_yielded,
    lane_ref,
    left,
    make_lanes,
    make_pack,
    pack_events,
    pack_plan,
    run_here,
    steps_done,
    three_jobs,
)

from slidepack.engine.contract.events import Finished, LaneJoined, Sampled, Warned
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.pack import LaneStep, Pack, StepOutcome
from slidepack.engine.model.loss import LossSum
from slidepack.engine.worker.trainee import LoraTrainee

NO_ROOM = "the card has no room for all lanes of the pack"


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, JobSpec]:
    return three_jobs(tmp_path_factory.mktemp("jobs"), dropout=0.0)


@pytest.fixture
def plan(jobs: dict[str, JobSpec]) -> RunPlan:
    return pack_plan(list(jobs.values()))


@pytest.fixture
def runs(jobs: dict[str, JobSpec], tmp_path: Path) -> dict[str, RunFolder]:
    return dict(make_lanes(tmp_path / "lanes", jobs.values()))


def _limit_steps(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    step = Pack.step

    def scripted(self: Pack, work: Mapping[str, LaneStep], *more: Any) -> dict[str, StepOutcome]:
        if len(work) > most:
            raise torch.OutOfMemoryError("no room")
        return step(self, work, *more)

    monkeypatch.setattr(Pack, "step", scripted)


def test_nobody_takes_the_room_that_a_lane_made(
    runs: dict[str, RunFolder], plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limit_steps(monkeypatch, 1)
    refs = [lane_ref(runs[name], priority) for name, priority in (("a", 1), ("b", 0), ("c", 9))]
    pack = make_pack(tmp_path / "pack", refs, plan, max_lanes=2, exact=False)
    assert run_here(pack) == 0
    joined = [event.lane for event in pack_events(pack) if isinstance(event, LaneJoined)]
    # The most urgent two; one of them makes room, and the third comes when the other is done.
    assert joined == ["c", "a", "b"]
    assert left(pack) == {"a": NO_ROOM, "c": "done", "b": "done"}
    assert_yielded(runs["a"], NO_ROOM)


def test_of_equals_the_last_to_come_makes_room(
    runs: dict[str, RunFolder], plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limit_steps(monkeypatch, 2)
    pack = make_pack(tmp_path / "pack", runs.values(), plan, exact=False)
    assert run_here(pack) == 0
    assert left(pack) == {"c": NO_ROOM, "a": "done", "b": "done"}


def test_an_evaluation_that_does_not_fit_makes_room_too(
    runs: dict[str, RunFolder], plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Pack.evaluate

    def scripted(self: Pack, rows: Mapping[str, Sequence[EncodedRow]]) -> dict[str, LossSum]:
        if len(rows) > 1:
            raise torch.OutOfMemoryError("no room")
        return evaluate(self, rows)

    monkeypatch.setattr(Pack, "evaluate", scripted)
    pack = make_pack(tmp_path / "pack", runs.values(), plan, exact=False)
    assert run_here(pack) == 0
    ends = left(pack)
    assert set(ends) == {"a", "b", "c"}
    assert set(ends.values()) <= {"done", NO_ROOM}
    assert list(ends.values()).count("done") >= 1
    for name, reason in ends.items():
        if reason == "done":
            assert isinstance(events_of(runs[name])[-1], Finished)
        else:
            assert_yielded(runs[name], NO_ROOM)


def test_exact_passes_are_not_made_smaller(
    runs: dict[str, RunFolder], plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _limit_steps(monkeypatch, 2)
    pack = make_pack(tmp_path / "pack", runs.values(), plan)
    assert run_here(pack) == 0
    assert left(pack)["c"] == NO_ROOM
    assert not [event for event in pack_events(pack) if isinstance(event, Warned)]


def test_a_lane_whose_events_cannot_be_written_gives_its_folder_back(
    runs: dict[str, RunFolder], plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs["b"].events.mkdir()
    step, free = Pack.step, []

    def looking(self: Pack, work: Mapping[str, LaneStep], *more: Any) -> dict[str, StepOutcome]:
        descriptor = os.open(runs["b"].lock, os.O_WRONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free.append(True)
        except BlockingIOError:
            free.append(False)
        finally:
            os.close(descriptor)
        return step(self, work, *more)

    monkeypatch.setattr(Pack, "step", looking)
    pack = make_pack(tmp_path / "pack", [runs["a"], runs["b"]], plan)
    assert run_here(pack) == 0
    assert left(pack) == {"b": "DISK-UNWRITABLE", "a": "done"}
    assert free
    assert all(free)


def test_a_lane_that_cannot_be_filled_gives_its_memory_back(
    runs: dict[str, RunFolder], plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialise = LoraArena.initialise
    sizes: list[tuple[int, list[int]]] = []
    join = Pack.join

    def once(self: LoraArena, seed: int) -> None:
        if len(sizes) == 1:
            raise torch.OutOfMemoryError("no room")
        initialise(self, seed)

    def looking(self: Pack, name: str, method: LoraMethod, seed: int) -> LoraArena:
        before = sum(lane.size for lane in self.lanes.values())
        try:
            return join(self, name, method, seed)
        finally:
            held = [lane.pool_of(0).grads.numel() for lane in self.lanes.values()]
            sizes.append((before, held))

    monkeypatch.setattr(LoraArena, "initialise", once)
    monkeypatch.setattr(Pack, "join", looking)
    pack = make_pack(tmp_path / "pack", [runs["a"], runs["b"]], plan)
    assert run_here(pack) == 0
    assert left(pack) == {"a": "done", "b": "done"}
    # The second try left the first lane's pool as large as it was.
    assert sizes[1] == (sizes[1][0], [sizes[1][0]])


@pytest.mark.parametrize("tuned", [False, True], ids=["before", "after"])
def test_answers_that_do_not_fit_cost_nothing_else(
    runs: dict[str, RunFolder],
    plan: RunPlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tuned: bool,
) -> None:
    answer: Callable[..., Any] = LoraTrainee.answer

    def scripted(self: LoraTrainee, *arguments: Any, **options: Any) -> Any:
        if options["tuned"] == tuned:
            raise torch.OutOfMemoryError("no room")
        return answer(self, *arguments, **options)

    monkeypatch.setattr(LoraTrainee, "answer", scripted)
    pack = make_pack(tmp_path / "pack", [runs["a"]], plan)
    assert run_here(pack) == 0
    assert left(pack) == {"a": "done"}
    warned = [event for event in events_of(runs["a"]) if isinstance(event, Warned)]
    assert {event.code for event in warned} == {"GPU-OUT-OF-MEMORY"}
    # The scores ask questions, too.
    (answers,) = [event for event in warned if event.message.startswith("The answers")]
    assert ("after" if tuned else "before") in answers.message
    assert [event for event in events_of(runs["a"]) if isinstance(event, Sampled)]


def test_the_rows_of_many_lanes_are_ordered_once_an_epoch(
    runs: dict[str, RunFolder], plan: RunPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled: list[int] = []
    shuffle = random.Random.shuffle

    def counted(self: random.Random, values: Any) -> None:
        shuffled.append(len(values))
        shuffle(self, values)

    monkeypatch.setattr(random.Random, "shuffle", counted)
    pack = make_pack(tmp_path / "pack", runs.values(), plan)
    assert run_here(pack) == 0
    # Each lane has 40 rows, a fifth of them held out, and goes over them twice at most.
    assert len(shuffled) <= 2 * len(runs)
    assert sum(map(steps_done, runs.values())) > 3 * len(shuffled)
    assert not [run for run in runs.values() if not isinstance(events_of(run)[-1], Finished)]
