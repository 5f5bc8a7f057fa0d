"""Deleting datasets, jobs and models: what it frees is said first, and what is needed stays."""

from pathlib import Path
from typing import Any

import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm, make_farm
from support.tiny import chat_rows, write_jsonl


def _used(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _paused(farm: Farm, **changes: Any) -> int:
    job = farm.queue(not_before=4e9, **changes)
    return job


@pytest.mark.full
def test_a_dataset_goes_when_nothing_needs_it(
    daemon: DaemonProcess, tiny_model: Path, tmp_path: Path
) -> None:
    farm = make_farm(daemon, tiny_model, tmp_path)
    other = daemon.upload(write_jsonl(tmp_path / "held.jsonl", chat_rows(7)))
    # Nothing smaller than it is left: that its data is gone is told before that.
    least = {"batch_size": 1, "max_seq_len": 16}
    job = _paused(farm, held_out=other, name='"dataset_id":"99"', **least)
    folder = daemon.home / "datasets" / str(farm.dataset)
    with daemon.http() as client:
        for needed in (farm.dataset, other):
            asked = client.get(f"/api/v1/datasets/{needed}/removal").json()
            assert asked["refusal"]["code"] == "DATA-IN-USE"
            assert f"job {job} has not ended" in asked["refusal"]["why"]
            refused = client.delete(f"/api/v1/datasets/{needed}")
            assert (refused.status_code, refused.json()["code"]) == (409, "DATA-IN-USE")
        assert folder.is_dir()
        farm.act(job, "cancel")
        asked = client.get(f"/api/v1/datasets/{farm.dataset}/removal").json()
        assert asked["refusal"] is None
        assert asked["frees_bytes"] == _used(folder) > 0
        assert any(f"job {job}" in said for said in asked["keeps"])
        assert folder.is_dir(), "asking deletes nothing"
        assert client.delete(f"/api/v1/datasets/{farm.dataset}").json() == asked
        assert not folder.exists()
        assert [row["id"] for row in client.get("/api/v1/datasets").json()] == [other]
        # Its job can be looked at, and says plainly why it cannot run again.
        assert client.get(f"/api/v1/jobs/{job}").status_code == 200
        for action in ("retry", "duplicate", "smaller"):
            refused = client.post(f"/api/v1/jobs/{job}/{action}")
            assert (refused.status_code, refused.json()["code"]) == (404, "DATA-NOT-FOUND")
        request = {"model": farm.model, "dataset": farm.dataset}
        assert client.post("/api/v1/jobs", json=request).json()["code"] == "DATA-NOT-FOUND"


@pytest.mark.full
def test_a_job_and_a_model_say_what_they_free(served_farm: Farm, tiny_model: Path) -> None:
    daemon = served_farm.daemon
    # Held until both have been asked: it is short.
    with served_farm.daemon.paused():
        job = served_farm.queue(steps=3, name="short")
        live = daemon.api("GET", f"/jobs/{job}/removal")
        model = daemon.api("GET", f"/models/{served_farm.model}/removal")
    assert live["refusal"]["code"] == "RUN-STATE"
    assert model["refusal"]["code"] == "RUN-STATE"
    assert "not ended" in model["refusal"]["why"]
    # Its folder is the user's: nothing in it is deleted.
    assert model["frees_bytes"] == 0
    assert any(str(tiny_model) in said for said in model["keeps"])
    served_farm.finish(job)
    asked = daemon.api("GET", f"/jobs/{job}/removal")
    assert asked["refusal"] is None
    assert asked["frees_bytes"] > 0
    daemon.api("DELETE", f"/jobs/{job}")
    with daemon.http() as client:
        assert client.get(f"/api/v1/jobs/{job}/removal").status_code == 404


@pytest.mark.full
def test_rejects_come_page_by_page(daemon: DaemonProcess) -> None:
    good = '{"prompt": "p", "completion": "c"}\n' * 400
    bad = "".join(f'{{"prompt": "bad {i}"}}\n' for i in range(130))
    with daemon.http() as client:
        made = client.put("/api/v1/datasets?name=mixed.jsonl", content=(good + bad).encode()).json()
        path = f"/api/v1/datasets/{made['id']}/rejects"
        seen, ats, at = [], [], 0
        while at is not None:
            page = client.get(path, params={"at": at}).json()
            seen += [reject["line"] for reject in page["rejects"]]
            ats.append((at, page["previous_at"]))
            at = page["next_at"]
        assert seen == list(range(401, 531))
        assert [previous for _, previous in ats[1:]] == [begin for begin, _ in ats[:-1]]
        # A place in the middle of a line, and one behind the end.
        middle = client.get(path, params={"at": 3}).json()
        assert middle["rejects"][0]["line"] == 402
        assert client.get(path, params={"at": 10**12}).json()["rejects"] == []
        shown = client.get(f"/datasets/{made['id']}").text
    assert "line 401" not in shown
    assert "<td>401</td>" in shown
