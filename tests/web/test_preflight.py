"""`POST /preflight`: what a job would come to, before it is queued."""

import re
from pathlib import Path
from typing import Any

import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm, make_farm
from support.waiting import PATIENCE, wait_until


def _asked(farm: Farm, **changes: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": farm.model, "dataset": farm.dataset} | changes
    with farm.daemon.http() as client:
        answer = client.post("/api/v1/preflight", json=body, timeout=PATIENCE)
        return answer.status_code, answer.json()


def test_rows_are_measured_and_the_training_is_planned(served_farm: Farm) -> None:
    with served_farm.daemon.http() as client:
        before = len(client.get("/api/v1/jobs").json())
    status, found = _asked(served_farm, max_seq_len=128)
    assert status == 200
    assert found["verdict"] in ("ok", "warn")
    assert found["error"] is None
    measured = found["measured"]
    assert 0 < measured["supervised_tokens"] < measured["tokens"]
    assert measured["lengths"]["max_seq_len"] == 128
    assert measured["shown"]
    assert found["plan"]["device"] == "cpu" or found["waiting"]
    with served_farm.daemon.http() as client:
        assert len(client.get("/api/v1/jobs").json()) == before


def test_a_limit_below_every_row_is_a_refusal_that_names_it(served_farm: Farm) -> None:
    status, found = _asked(served_farm, max_seq_len=16)
    assert (status, found["verdict"]) == (200, "refuse")
    assert found["error"]["code"] == "DATA-NO-USABLE-ROWS"
    assert "max_seq_len 16" in found["error"]["why"]
    (longer,) = [fix for fix in found["fixes"] if fix["setting"] == "max_seq_len"]
    _, mended = _asked(served_farm, max_seq_len=longer["value"])
    assert mended["error"] is None


@pytest.mark.full
def test_what_the_disk_lacks_is_told_before_it_is_queued(tiny_model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with DaemonProcess(home) as daemon:
        farm = make_farm(daemon, tiny_model, tmp_path)
        _, found = _asked(farm, max_seq_len=128)
        assert found["short_of_disk"] == ""
    with DaemonProcess(home, disk_floor_gb="1000000") as daemon:
        farm.daemon = daemon
        wait_until(lambda: not _asked(farm)[1]["waiting"], what="the machine is known")
        status, found = _asked(farm, max_seq_len=128)
        assert (status, found["verdict"], found["error"]) == (200, "warn", None)
        assert "needed on the disk" in found["short_of_disk"]
        fields = {"model": farm.model, "dataset": str(farm.dataset), "max_seq_len": "128"}
        with daemon.http() as client:
            page = client.post("/new/preflight", data=fields).text
        # How much is free changes from one moment to the next.
        assert re.search(r"It would wait for room: [\d.]+ GB needed on the disk, ", page)


def test_what_makes_no_job_makes_no_preflight(served_farm: Farm) -> None:
    status, found = _asked(served_farm, model="nobody")
    assert status == 404
    assert "MODEL-NOT-FOUND" in str(found)
    status, _ = _asked(served_farm, max_seq_len=-1)
    assert status >= 400
