"""A sweep at a real daemon: one worker for all members, judged at the rungs, the best one told."""

from pathlib import Path

import pytest
from support.daemons import DaemonProcess
from support.queueing import make_farm
from support.waiting import wait_until


@pytest.mark.full
def test_members_share_a_worker_and_those_behind_end_early(
    daemon: DaemonProcess, tiny_model: Path, tmp_path: Path
) -> None:
    farm = make_farm(daemon, tiny_model, tmp_path)
    # The first to reach a rung always goes on, so the good ones are queued first.
    rates = [3e-3, 2e-3, 1e-3, 1e-6, 2e-6, 3e-6]
    queued = daemon.api(
        "POST",
        "/sweeps",
        json={
            "model": farm.model,
            "dataset": farm.dataset,
            "name": "rates",
            "fixed": {"rank": 4, "steps": 24, "batch_size": 4, "max_seq_len": 128},
            "grid": {"lr": rates},
            "halving": {"first_samples": 16, "eta": 3},
        },
    )
    sweep = queued["sweep_id"]

    def settled() -> object:
        table = daemon.api("GET", f"/sweeps/{sweep}")
        states = [member["state"] for member in table["members"]]
        assert not {"failed", "cancelled"} & set(states), table
        return table if set(states) == {"completed"} else None

    table = wait_until(settled, what="the sweep is done")
    assert isinstance(table, dict)
    pids = {daemon.attempts(job)[0]["pid"] for job in queued["jobs"]}
    assert len(pids) == 1, "one worker for all"
    stopped = {m["settings"]["lr"] for m in table["members"] if m["stopped_rung"]}
    assert stopped & set(rates[3:]), "who is behind ends early"
    assert all(m["step"] < 24 for m in table["members"] if m["stopped_rung"])
    best = daemon.api("GET", f"/sweeps/{sweep}/best")
    assert best["settings"]["lr"] in rates[:3]
    assert best["loss"] == min(m["loss"] for m in table["members"])
    assert best["test_loss"] is not None
    assert (Path(best["adapter"]) / "adapter_model.safetensors").is_file()
    wait_until(lambda: not daemon.workers(), what="the worker has left")
