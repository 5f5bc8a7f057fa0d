"""The worker on a pack: who shares the passes changes nothing; lanes come and go as asked."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from support.full_worker import events_of
from support.pack_runs import (
    PackAtWork,
    adapter_of,
    alone,
    answers,
    assert_yielded,
    checkpointed,
    failure,
    give,
    joined,
    lane_ref,
    lane_run,
    left,
    make_lanes,
    make_pack,
    pack_events,
    pack_plan,
    resumed_lane,
    run_here,
    seats_taken,
    start_pack,
    steps_done,
    three_jobs,
)
from support.runs import make_run, run_worker
from support.waiting import wait_until

from slidepack.engine.contract.control import ControlCommand
from slidepack.engine.contract.errors import CATALOGUE, EXIT_YIELDED
from slidepack.engine.contract.events import (
    Failed,
    Finished,
    LaneJoined,
    PhaseChanged,
    Started,
    Warned,
    Yielded,
)
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.pack import LaneStep, Pack, StepOutcome
from slidepack.engine.lora.rows import LaneTensors, lane_tensors
from slidepack.engine.shape import ModelShape
from slidepack.engine.worker.lock import take_lock
from slidepack.engine.worker.seat import Seat


@dataclass(frozen=True)
class Lanes:
    """Jobs, the plan of their passes, and each one's run alone."""

    specs: Mapping[str, JobSpec]
    plan: RunPlan
    alone: Mapping[str, RunFolder]


@pytest.fixture(scope="module")
def lanes(tmp_path_factory: pytest.TempPathFactory) -> Lanes:
    root = tmp_path_factory.mktemp("lanes")
    specs = three_jobs(root)
    plan = pack_plan(list(specs.values()))
    return Lanes(specs, plan, alone(root / "alone", specs.values(), plan))


@pytest.fixture(scope="module")
def plain_lanes(tmp_path_factory: pytest.TempPathFactory) -> Lanes:
    """The same without dropout: their steps take less time."""
    root = tmp_path_factory.mktemp("plain-lanes")
    specs = three_jobs(root, dropout=0.0)
    plan = pack_plan(list(specs.values()))
    return Lanes(specs, plan, alone(root / "alone", specs.values(), plan))


@pytest.fixture(scope="module")
def long_lanes(plain_lanes: Lanes, tmp_path_factory: pytest.TempPathFactory) -> Lanes:
    """Jobs of so many steps that a command always finds them at work; only `b` is run alone."""
    changes: dict[str, Any] = {"steps": 60, "checkpoint_every_steps": 1000}
    specs = {
        name: msgspec.structs.replace(spec, **changes) for name, spec in plain_lanes.specs.items()
    }
    specs["stays"] = msgspec.structs.replace(specs["c"], name="stays", steps=100_000)
    root = tmp_path_factory.mktemp("long-lanes")
    return Lanes(specs, plain_lanes.plan, alone(root, [specs["b"]], plain_lanes.plan))


def test_lanes_end_as_each_would_alone(lanes: Lanes, tmp_path: Path) -> None:
    """Every event, checkpoint and result, bit for bit; the third joins when one leaves."""
    runs = make_lanes(tmp_path, lanes.specs.values())
    refs = [lane_ref(runs[name], priority) for name, priority in (("b", 0), ("a", 1), ("c", 2))]
    pack = make_pack(tmp_path / "pack", refs, lanes.plan, max_lanes=2)
    # As the daemon starts it: by name, with nothing loaded.
    assert run_worker(RunFolder(pack.root)) == 0, pack.log.read_text()
    assert joined(pack) == ["c", "a", "b"], "the highest priority first"
    assert left(pack) == dict.fromkeys("abc", "done")
    assert [len(seats) for seats in seats_taken(pack)] == [0, 1, 2, 1, 2, 1, 0]
    for name, run in runs.items():
        ours, judge = lane_run(run), lane_run(lanes.alone[name])
        assert ours.story == judge.story
        assert ours.checkpoints == judge.checkpoints
        assert ours.result == judge.result
        assert isinstance(events_of(run)[-1], Finished)
        assert set(ours.result) == {"adapter_model.safetensors", "adapter_config.json"}


def test_lanes_of_one_priority_join_in_their_order(plain_lanes: Lanes, tmp_path: Path) -> None:
    runs = make_lanes(tmp_path, plain_lanes.specs.values())
    pack = make_pack(tmp_path / "pack", runs.values(), plain_lanes.plan, max_lanes=1)
    assert run_here(pack) == 0
    assert joined(pack) == ["a", "b", "c"]
    assert max(len(seats) for seats in seats_taken(pack)) == 1


def test_without_exactness_a_lane_is_the_same_but_for_rounding(
    plain_lanes: Lanes, tmp_path: Path
) -> None:
    runs = make_lanes(tmp_path, plain_lanes.specs.values())
    pack = make_pack(tmp_path / "pack", runs.values(), plain_lanes.plan, exact=False)
    assert run_here(pack) == 0
    for name, run in runs.items():
        ours, judge = events_of(run)[-1], events_of(plain_lanes.alone[name])[-1]
        assert isinstance(ours, Finished)
        assert isinstance(judge, Finished)
        # A rounding of an fp32 loss near 6 is 5e-7; a dozen steps carry it on.
        assert ours.eval_loss_after == pytest.approx(judge.eval_loss_after, rel=0, abs=1e-4)


@pytest.mark.parametrize("exact", [True, False])
def test_rows_are_filled_up_only_in_exact_mode(
    plain_lanes: Lanes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    """This CPU may round alike whatever the size of a product; other devices do not."""
    sizes: set[int] = set()

    def noted(*args: Any, **more: Any) -> LaneTensors:
        laid = lane_tensors(*args, **more)
        sizes.add(laid.row.ids.numel())
        return laid

    for module in ("rows", "lanes"):
        monkeypatch.setattr(f"slidepack.engine.lora.{module}.lane_tensors", noted)
    runs = make_lanes(tmp_path, [plain_lanes.specs["c"]])
    pack = make_pack(tmp_path / "pack", runs.values(), plain_lanes.plan, exact=exact)
    assert run_here(pack) == 0
    if exact:
        (size,) = sizes
        assert size > plain_lanes.plan.micro_batch_tokens
    else:
        assert len(sizes) > 1
        assert max(sizes) <= plain_lanes.plan.micro_batch_tokens


def test_a_pack_without_lanes_is_complete(plain_lanes: Lanes, tmp_path: Path) -> None:
    pack = make_pack(tmp_path / "pack", [plain_lanes.alone["a"]], plain_lanes.plan)
    empty = msgspec.structs.replace(pack.read_pack(), lanes=())
    pack.pack.write_bytes(msgspec.json.encode(empty))
    assert run_here(pack) == 0
    assert {type(event) for event in pack_events(pack)} == {PhaseChanged}


def test_a_lane_that_only_lacks_its_result_takes_no_step(
    plain_lanes: Lanes, tmp_path: Path
) -> None:
    judge = plain_lanes.alone["c"]
    resumed = resumed_lane(tmp_path, judge)
    others = make_lanes(tmp_path, [plain_lanes.specs["a"]])
    pack = make_pack(tmp_path / "pack", [resumed, others["a"]], plain_lanes.plan)
    assert run_here(pack) == 0
    assert steps_done(resumed) == 0
    assert lane_run(resumed).result == lane_run(judge).result
    assert lane_run(resumed).story[-1] == lane_run(judge).story[-1]
    assert lane_run(others["a"]).story == lane_run(plain_lanes.alone["a"]).story


@pytest.mark.parametrize(
    ("file", "content"), [("pack.json", '{"base": '), ("plan.json", "{}"), ("plan.json", None)]
)
def test_a_broken_pack_folder_is_said_in_its_own_events(
    plain_lanes: Lanes, tmp_path: Path, file: str, content: str | None
) -> None:
    run = make_run(tmp_path / "a", plain_lanes.specs["a"])
    pack = make_pack(tmp_path / "pack", [run], plain_lanes.plan)
    if content is None:
        (pack.root / file).unlink()
    else:
        (pack.root / file).write_text(content)
    assert run_here(pack) == CATALOGUE["RUN-FOLDER-BROKEN"].exit_code
    failed = pack_events(pack)[-1]
    assert isinstance(failed, Failed)
    assert failed.error.code == "RUN-FOLDER-BROKEN"
    assert file in failed.error.what
    assert events_of(run) == []


def _leave(command_id: str, lane: str, reason: str = "") -> ControlCommand:
    return ControlCommand(command_id=command_id, kind="leave", lane=lane, reason=reason)


def _join(command_id: str, run: RunFolder, priority: int = 0) -> ControlCommand:
    return ControlCommand(
        command_id=command_id,
        kind="join",
        lane=run.root.name,
        folder=str(run.root),
        priority=priority,
    )


@pytest.mark.full
def test_lanes_join_and_leave_a_pack_at_work(long_lanes: Lanes, tmp_path: Path) -> None:
    runs = make_lanes(tmp_path / "first", long_lanes.specs.values())
    first = [lane_ref(runs["stays"], 2), lane_ref(runs["b"], 1), lane_ref(runs["a"], -1)]
    pack = make_pack(tmp_path / "pack", first, long_lanes.plan, max_lanes=2)
    with PackAtWork(pack, start_pack(pack)) as session:
        session.has_steps(runs["b"], 2)
        before = steps_done(runs["stays"])
        unknown, known = "it is not in the pack", "it is in the pack already"
        assert session.ask(
            _leave("one that waits leaves", "a"),
            _leave("it leaves again", "a"),
            _leave("a stranger leaves", "nobody"),
            _join("one that runs joins", runs["b"]),
            _join("one that was turned away joins", runs["a"]),
            _join("it joins again", runs["a"], priority=9),
            _join("a more urgent one joins", runs["c"], priority=1),
            _leave("one that runs leaves", "b", "it makes room"),
        ) == ["done", unknown, unknown, known, "done", known, "done", "done"]
        assert left(pack) == {"b": "it makes room"}
        assert_yielded(runs["b"], "it makes room")
        assert 2 <= steps_done(runs["b"]) < 60
        assert checkpointed(runs["b"]) == [(steps_done(runs["b"]), "it makes room")]
        session.has_steps(runs["c"], 2)
        assert joined(pack) == ["stays", "b", "c"]
        assert events_of(runs["a"]) == [], "one that waits has not begun"
        assert steps_done(runs["stays"]) > before

        # Without a reason of its own, the command is the reason.
        save = ControlCommand(command_id="save", kind="checkpoint")
        assert session.ask(save) == ["done"]
        for name in ("stays", "c"):
            assert [reason for _, reason in checkpointed(runs[name])] == ["control command save"]
        session.has_steps(runs["stays"])
        assert session.ask(_leave("go", "c")) == ["done"]
        assert_yielded(runs["c"], "control command go")
        session.has_steps(runs["a"])

        give(pack, ControlCommand(command_id="end", kind="stop"))
        assert session.worker.wait() == EXIT_YIELDED
        assert answers(pack)["end"] == "done"
        last = pack_events(pack)[-1]
        assert isinstance(last, Yielded)
        assert last.reason == "control command end"
        for name in ("stays", "a"):
            assert_yielded(runs[name], "control command end")
            assert left(pack)[name] == "control command end"

    # Beside another lane, it ends as if it had never left.
    resumed = resumed_lane(tmp_path / "second", runs["b"])
    (beside,) = make_lanes(
        tmp_path, [msgspec.structs.replace(long_lanes.specs["a"], name="new", steps=4)]
    ).values()
    second = make_pack(tmp_path / "second-pack", [resumed, beside], long_lanes.plan)
    assert run_here(second) == 0
    entered = {e.lane: e.step for e in pack_events(second) if isinstance(e, LaneJoined)}
    assert entered == {"b": steps_done(runs["b"]), "new": 0}
    assert adapter_of(resumed) == adapter_of(long_lanes.alone["b"])
    assert lane_run(resumed).checkpoints == lane_run(long_lanes.alone["b"]).checkpoints


def test_a_second_worker_on_a_pack_is_refused(long_lanes: Lanes, tmp_path: Path) -> None:
    run = make_run(tmp_path / "stays", long_lanes.specs["stays"])
    pack = make_pack(tmp_path / "pack", [run], long_lanes.plan)
    with PackAtWork(pack, start_pack(pack)) as session:
        session.has_steps(run)
        assert start_pack(pack).wait() == CATALOGUE["RUN-FOLDER-BUSY"].exit_code
        session.has_steps(run)
        assert not [event for event in pack_events(pack) if isinstance(event, Failed)]
        give(pack, _leave("end", "stays"))
        assert session.worker.wait() == 0, "nobody is left"


@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    [("leave", 0, "go"), ("stop", EXIT_YIELDED, "control command now")],
)
def test_a_lane_may_be_turned_away_while_its_data_is_read(
    plain_lanes: Lanes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Any,
    code: int,
    reason: str,
) -> None:
    runs = make_lanes(tmp_path, plain_lanes.specs.values())
    pack = make_pack(tmp_path / "pack", [runs["a"], runs["b"]], plain_lanes.plan)
    command = ControlCommand(command_id="now", kind=kind, lane="b", reason="go")
    read_data = Seat.read_data

    def asked_meanwhile(self: Seat, shape: ModelShape) -> None:
        if self.ref.lane == "b":
            give(pack, command)
            wait_until(lambda: "now" in answers(pack), what="the command is answered")
        read_data(self, shape)

    monkeypatch.setattr(Seat, "read_data", asked_meanwhile)
    assert run_here(pack) == code
    assert answers(pack) == {"now": "done"}
    assert "b" not in joined(pack)
    story = events_of(runs["b"])
    last = story[-1]
    assert isinstance(last, Yielded)
    assert last.reason == reason
    assert not [event for event in story if isinstance(event, Started)]
    # Whoever resumes it can have the folder.
    os.close(take_lock(runs["b"].lock))


@dataclass(frozen=True)
class _Try:
    """A step that was tried."""

    lanes: tuple[str, ...]
    max_tokens: int
    longest: int


def _no_room_for(
    monkeypatch: pytest.MonkeyPatch, too_much: Callable[[int, _Try], bool]
) -> list[_Try]:
    """Let steps run out of memory where they are too much; return what is tried."""
    tried: list[_Try] = []
    step = Pack.step

    def scripted(self: Pack, work: Mapping[str, LaneStep], *more: Any) -> dict[str, StepOutcome]:
        longest = max(len(row.ids) for lane in work.values() for row in lane.rows)
        tried.append(_Try(tuple(work), self.max_tokens, longest))
        if too_much(len(tried), tried[-1]):
            raise torch.OutOfMemoryError("no room for 2.00 MiB")
        return step(self, work, *more)

    monkeypatch.setattr(Pack, "step", scripted)
    return tried


def _of_no_room(events: list[Any]) -> list[str]:
    warned = [event for event in events if isinstance(event, Warned)]
    return [event.message for event in warned if event.code == "GPU-OUT-OF-MEMORY"]


def test_passes_that_do_not_fit_are_made_smaller(
    plain_lanes: Lanes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = _no_room_for(monkeypatch, lambda _, step: step.max_tokens > 80)
    runs = make_lanes(tmp_path, plain_lanes.specs.values())
    plan = msgspec.structs.replace(plain_lanes.plan, micro_batch_tokens=320)
    pack = make_pack(tmp_path / "pack", runs.values(), plan, exact=False)
    assert run_here(pack) == 0
    assert [step.max_tokens for step in tried[:4]] == [320, 160, 80, 80]
    assert _of_no_room(pack_events(pack)) == [
        f"a pass has at most {tokens} tokens now" for tokens in (160, 80)
    ]
    assert left(pack) == dict.fromkeys("abc", "done")
    for name, run in runs.items():
        assert steps_done(run) == plain_lanes.specs[name].steps, "no step is lost or done twice"


def test_the_least_urgent_lane_makes_room(
    plain_lanes: Lanes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = make_lanes(tmp_path, plain_lanes.specs.values())
    refs = [lane_ref(runs[name], priority) for name, priority in (("a", 1), ("b", 0), ("c", 2))]
    pack = make_pack(tmp_path / "pack", refs, plain_lanes.plan, exact=False)
    crowded_at = 3

    def too_much(_: int, step: _Try) -> bool:
        return len(step.lanes) == 3 and steps_done(runs["b"]) >= crowded_at

    tried = _no_room_for(monkeypatch, too_much)
    assert run_here(pack) == 0
    least = tried[5].longest
    assert 40 < least < 80
    # Three steps, one that does not fit, passes no shorter than a row, and one lane less.
    assert [step.max_tokens for step in tried[:7]] == [160] * 4 + [80, least, least]
    assert [len(step.lanes) for step in tried[:7]] == [3] * 6 + [2]
    reason = "the card has no room for all lanes of the pack"
    assert left(pack) == {"b": reason, "c": "done", "a": "done"}
    assert_yielded(runs["b"], reason)
    assert steps_done(runs["b"]) == crowded_at
    for name in ("a", "c"):
        assert steps_done(runs[name]) == plain_lanes.specs[name].steps
    resumed = resumed_lane(tmp_path / "later", runs["b"])
    assert run_here(make_pack(tmp_path / "later-pack", [resumed], plain_lanes.plan)) == 0
    (started,) = [event for event in events_of(resumed) if isinstance(event, Started)]
    assert started.from_step == crowded_at
    assert isinstance(events_of(resumed)[-1], Finished)


def test_the_last_lane_fails_where_there_is_no_room_at_all(
    plain_lanes: Lanes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = _no_room_for(monkeypatch, lambda number, _: number > 1)
    runs = make_lanes(tmp_path, plain_lanes.specs.values())
    refs = [lane_ref(runs[name], priority) for name, priority in (("a", 1), ("b", 0), ("c", 2))]
    pack = make_pack(tmp_path / "pack", refs, plain_lanes.plan, exact=False)
    assert run_here(pack) == 0
    reason = "the card has no room for all lanes of the pack"
    assert left(pack) == {"b": reason, "a": reason, "c": "GPU-OUT-OF-MEMORY"}
    for name in ("a", "b"):
        assert_yielded(runs[name], reason)
    error = failure(runs["c"]).error
    assert error.code == "GPU-OUT-OF-MEMORY"
    assert "no room for 2.00 MiB" in error.why
    assert all(step.max_tokens >= step.longest for step in tried)
    assert tried[-1].max_tokens == tried[-1].longest
    assert tried[-1].lanes == ("c",)


def _no_seat_for(
    monkeypatch: pytest.MonkeyPatch, refused: Callable[[str, Pack], bool]
) -> list[str]:
    """Let some lanes find no room for their adapter; return who tried, in order."""
    tried: list[str] = []
    join = Pack.join

    def scripted(self: Pack, name: str, method: LoraMethod, seed: int) -> LoraArena:
        tried.append(name)
        if refused(name, self):
            raise torch.OutOfMemoryError("no room for 2.00 MiB")
        return join(self, name, method, seed)

    monkeypatch.setattr(Pack, "join", scripted)
    return tried


def test_a_lane_without_room_waits_until_one_has_left(
    plain_lanes: Lanes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = _no_seat_for(monkeypatch, lambda name, pack: name == "b" and "a" in pack.lanes)
    runs = make_lanes(tmp_path, plain_lanes.specs.values())
    refs = [lane_ref(runs[name], priority) for name, priority in (("a", 2), ("b", 1), ("c", 0))]
    pack = make_pack(tmp_path / "pack", refs, plain_lanes.plan, max_lanes=2)
    assert run_here(pack) == 0
    # Nor does the third take the seat meanwhile.
    assert tried == ["a", "b", "b", "c"]
    assert seats_taken(pack)[:4] == [set(), {"a"}, set(), {"b"}]
    assert left(pack) == dict.fromkeys("abc", "done")
    for name, run in runs.items():
        assert adapter_of(run) == adapter_of(plain_lanes.alone[name])


def test_a_lane_that_has_no_room_alone_fails(
    plain_lanes: Lanes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_seat_for(monkeypatch, lambda name, _: name == "b")
    runs = make_lanes(tmp_path, plain_lanes.specs.values())
    pack = make_pack(tmp_path / "pack", runs.values(), plain_lanes.plan, max_lanes=1)
    assert run_here(pack) == 0
    assert left(pack) == {"a": "done", "b": "GPU-OUT-OF-MEMORY", "c": "done"}
    assert failure(runs["b"]).error.code == "GPU-OUT-OF-MEMORY"
    assert not [event for event in events_of(runs["b"]) if isinstance(event, Started)]
