"""A lane whose own disk is full, in a pack whose disk is not."""

import os
from pathlib import Path

import pytest
from support.full_worker import events_of
from support.pack_runs import make_lanes, make_pack, pack_events, pack_plan, run_here, three_jobs

from slidepack.engine.contract.events import Finished, LaneLeft
from slidepack.engine.lora.pack import LaneStep
from slidepack.engine.worker.seat import Seat


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "at its checkpoint"])
def test_a_lane_whose_disk_takes_no_event_is_told_of_by_its_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    specs = three_jobs(tmp_path / "jobs", dropout=0.0)
    runs = make_lanes(tmp_path, specs.values())
    # Every write to it finds the disk full.
    full = Path("/dev/full")
    if begun:
        step = Seat.next_step

        def then_full(seat: Seat, ahead: int = 0) -> LaneStep:
            if seat.ref.lane == "b" and seat.steps_done == 2:
                seat.folder.events.rename(tmp_path / "b.jsonl")
                descriptor = os.open(full, os.O_WRONLY)
                os.dup2(descriptor, seat.events._descriptor)
                os.close(descriptor)
            return step(seat, ahead)

        monkeypatch.setattr(Seat, "next_step", then_full)
    else:
        runs["b"].events.symlink_to(full)
    pack = make_pack(tmp_path / "pack", runs.values(), pack_plan(list(specs.values())))
    assert run_here(pack) == 0, "the others end well"
    errors = {
        event.lane: event.error.code if event.error else None
        for event in pack_events(pack)
        if isinstance(event, LaneLeft)
    }
    assert errors == {"a": None, "b": "DISK-FULL", "c": None}
    for name in "ac":
        assert isinstance(events_of(runs[name])[-1], Finished)
