"""What the supervisor takes from packs, and what it tells them, over real files."""

from pathlib import Path

import pytest
from support.stores import Stores, plain_spec

from slidepack.daemon.store.attempts import AttemptRecord
from slidepack.daemon.store.packs import PackRecord
from slidepack.daemon.supervisor.pack_control import is_expected, send
from slidepack.daemon.supervisor.pack_follow import PackFollower
from slidepack.daemon.supervisor.pack_starting import tell_to_join
from slidepack.engine.contract.control import ControlCommand, decode_command
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import (
    AnyEvent,
    Failed,
    LaneJoined,
    LaneLeft,
    PhaseChanged,
    StepTimed,
    encode_event,
)
from slidepack.engine.contract.pack import LaneRef, PackFolder, PackSpec
from slidepack.engine.contract.runfolder import write_structs
from slidepack.engine.memory import Machine

MACHINE = Machine(
    device="cuda:1", device_free_bytes=8 << 30, ram_available_bytes=32 << 30, cpu_threads=4
)


class _Sink:
    def __init__(self) -> None:
        self.steps: list[tuple[str, int, int]] = []
        self.starts: list[float] = []

        self.held_up: list[float] = []

    def left(self, pack: PackRecord, held_up_seconds: float, now: float) -> None:
        self.held_up.append(held_up_seconds)

    def began(self, pack: PackRecord, seconds: float, now: float) -> None:
        self.starts.append(seconds)

    def record(self, pack: PackRecord, event: StepTimed, now: float) -> None:
        self.steps.append((pack.device, event.tokens, event.lanes))


class _World:
    """A pack with two lanes that no worker runs."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.sink = _Sink()
        self.again: list[int] = []
        root = stores.folder / "pack"
        root.mkdir()
        self.folder = PackFolder(root)
        self.pack = stores.packs.add(
            device="cuda:1",
            model="base|bf16|plain",
            folder=root,
            nonce="n",
            machine=MACHINE,
            alone=False,
            now=1.0,
        )
        self.lanes = [self._lane() for _ in range(2)]
        refs = tuple(LaneRef(lane=str(a.job_id), folder=a.folder) for a in self.lanes[:1])
        write_structs({self.folder.pack: PackSpec(base=plain_spec().base, lanes=refs)})
        self.follower = PackFollower(
            database=stores.database,
            packs=stores.packs,
            attempts=stores.attempts,
            runlog=stores.runlog,
            expect_again=lambda pack, lane: self.again.append(lane.job_id),
            steps=self.sink,
        )

    def _lane(self) -> AttemptRecord:
        job = self.stores.jobs.add(plain_spec(), 0.0)
        self.stores.jobs.move(job.id, "starting", "starts", 1.0)
        folder = self.stores.folder / f"lane-{job.id}"
        folder.mkdir()
        self.stores.attempts.add(
            job.id, 1, str(folder), "n", 1.0, device="cuda:1", pack_id=self.pack.id
        )
        return self.stores.attempt(job.id)

    def report(self, *events: AnyEvent) -> None:
        with self.folder.events.open("ab") as file:
            file.writelines(encode_event(event) for event in events)

    def commands(self) -> list[ControlCommand]:
        return [decode_command(line) for line in self.folder.control.read_bytes().splitlines()]


@pytest.fixture
def world(stores: Stores) -> _World:
    return _World(stores)


def test_its_machine_comes_back_as_it_was(world: _World) -> None:
    found = world.stores.packs.live()
    assert [pack.machine for pack in found] == [MACHINE]
    assert (found[0].ready, found[0].alone, found[0].error) == (False, False, None)


def test_events_are_taken_once_whatever_is_torn(world: _World) -> None:
    world.report(LaneJoined(at=8.5, lane="1", step=0), LaneJoined(at=9.5, lane="2", step=0))
    world.report(
        LaneLeft(at=9.0, lane="1", step=3, reason="done", held_up_seconds=2.5),
        LaneLeft(at=9.0, lane="2", step=3, reason="its user wants to", held_up_seconds=1.0),
    )
    world.report(StepTimed(at=1.0, tokens=4096, lanes=2, seconds=0.5, steps=10))
    with world.folder.events.open("ab") as file:
        file.write(b'{"type":"lane_jo')
    assert world.follower.ingest(world.pack.id, 2.0)
    assert not world.follower.ingest(world.pack.id, 2.0), "half a line is no event yet"
    assert world.sink.steps == [("cuda:1", 4096, 2)]
    assert world.follower.is_ready(world.lanes[0])
    assert world.sink.held_up == [2.5], "who leaves early tells nothing of the whole"
    assert world.sink.starts == [7.5], "from its start to its first lane"
    with world.folder.events.open("ab") as file:
        file.write(b"no end\n")
    assert world.follower.ingest(world.pack.id, 2.0), "a broken line is passed over"
    assert not world.follower.ingest(world.pack.id, 2.0)
    assert world.sink.steps == [("cuda:1", 4096, 2)]


def test_lanes_that_have_not_begun_show_what_their_pack_does(world: _World) -> None:
    begun, waiting = world.lanes
    (Path(begun.folder) / "events.jsonl").write_bytes(b"")
    world.report(PhaseChanged(at=1.0, phase="loading"))
    world.follower.ingest(world.pack.id, 2.0)
    assert world.stores.jobs.get(waiting.job_id).phase == "loading"
    assert world.stores.jobs.get(begun.job_id).phase == ""
    assert world.follower.never_began(waiting)
    assert not world.follower.never_began(begun)


def test_a_pack_that_fails_says_so_for_its_lanes(world: _World) -> None:
    assert world.follower.error_of(world.lanes[0]) is None
    report = SlidepackError("GPU-UNUSABLE", "The card cannot be used.", why="x", fix="y").report
    world.report(Failed(at=1.0, error=report))
    world.follower.ingest(world.pack.id, 2.0)
    for lane in world.lanes:
        assert world.follower.error_of(lane) == report
        assert world.follower.is_shared(lane)


def test_what_a_lane_could_not_say_itself_its_pack_says(world: _World) -> None:
    first, second = world.lanes
    report = SlidepackError("DISK-FULL", "The disk is full.", why="x", fix="y").report
    world.report(
        LaneLeft(at=1.0, lane=str(first.job_id), step=3, reason="DISK-FULL", error=report),
        LaneLeft(at=2.0, lane=str(second.job_id), step=3, reason="DISK-FULL"),
    )
    world.follower.ingest(world.pack.id, 2.0)
    ending = world.stores.runlog.ending(first.job_id, first.number)
    assert ending == Failed(at=1.0, error=report)
    assert world.stores.runlog.ending(second.job_id, second.number) is None, "its own events tell"


def test_a_lane_is_asked_to_leave_once(world: _World) -> None:
    lane = world.lanes[1]
    for _ in range(3):
        world.follower.ask_to_leave(lane, "its user wants to")
    (command,) = world.commands()
    assert (command.kind, command.lane, command.reason) == (
        "leave",
        str(lane.job_id),
        "its user wants to",
    )


def test_a_pack_found_again_is_told_of_the_lane_it_never_heard_of(world: _World) -> None:
    world.follower.found_again(world.pack.id)
    assert world.again == [world.lanes[1].job_id], "the first is in its specification"
    lane = world.lanes[1]
    send(
        world.folder,
        ControlCommand(
            command_id="join-2-1", kind="join", lane=str(lane.job_id), folder=lane.folder
        ),
    )
    world.follower.found_again(world.pack.id)
    assert len(world.again) == 1, "it was told by now"
    assert is_expected(world.folder, str(lane.job_id), Path(lane.folder))


def test_who_joins_later_is_as_urgent_as_who_was_there(world: _World) -> None:
    world.stores.database.execute("UPDATE jobs SET priority = 7 WHERE id = 2")
    lane = world.lanes[1]
    job = world.stores.jobs.get(lane.job_id)
    tell_to_join(world.pack, job, lane.number, Path(lane.folder))
    (command,) = world.commands()
    assert (command.kind, command.lane, command.folder, command.priority) == (
        "join",
        "2",
        lane.folder,
        7,
    )


def test_a_command_that_the_disk_refuses_leaves_no_half_line(
    world: _World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ControlCommand(command_id="1", kind="checkpoint")
    send(world.folder, first)
    monkeypatch.setattr(
        "slidepack.daemon.supervisor.pack_control.encode_command", lambda _command: _Short(b"{")
    )
    with pytest.raises(OSError, match="of 9 bytes"):
        send(world.folder, ControlCommand(command_id="2", kind="stop"))
    assert world.commands() == [first]


class _Short(bytes):
    """One byte that claims to be nine, so that fewer are written than were asked for."""

    def __len__(self) -> int:
        return 9


def test_a_pack_that_is_over_has_no_seat(world: _World) -> None:
    world.follower.end(world.pack, 3.0)
    assert world.stores.packs.live() == []
    assert world.stores.packs.get(world.pack.id).ended_at == 3.0
