"""The plan over the API of a real daemon."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm, make_farm
from support.waiting import PATIENCE, wait_until

from slidepack.daemon.planning.report import PlanReport


@pytest.fixture(scope="module")
def held_farm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A daemon of this file's own whose queue is held, with two jobs in it."""
    folder = tmp_path_factory.mktemp("plan")
    with DaemonProcess(folder / "home") as daemon:
        farm = make_farm(daemon, tiny_model, folder)
        daemon.api("POST", "/queue/pause")
        first = farm.queue(steps=50)
        farm.queue(steps=20, after=[first])
        wait_until(
            lambda: daemon.api("GET", "/hardware")["software"], seconds=120, what="torch is known"
        )
        yield farm


def _post(farm: Farm, body: Any) -> httpx.Response:
    with farm.daemon.http() as client:
        return client.post("/api/v1/plan", json=body, timeout=PATIENCE)


def test_the_queue_is_planned_with_reasons(held_farm: Farm) -> None:
    report = held_farm.daemon.api("GET", "/plan")
    assert set(report) == set(PlanReport.__struct_fields__)
    first, second = report["jobs"]
    assert [device["key"] for device in report["devices"]] == ["cpu"]
    assert (first["job_id"], first["steps"], first["waits"]) == (1, 50, "")
    assert second["waits"] == "waits for job 1"
    assert report["plan"]["makespan_seconds"] >= report["plan"]["bound_seconds"] > 0
    assert any("Nothing may train now" in note for note in report["notes"])


def test_what_would_be_is_answered_and_not_done(held_farm: Farm) -> None:
    before = held_farm.daemon.api("GET", "/jobs")
    asked = {
        "devices": [{"name": "RTX 4090"}],
        "jobs": [{"like": 1, "count": 3, "rank": 2}],
        "windows": [{"days": ["mon"], "start": "23:00", "end": "07:00"}],
    }
    answer = _post(held_farm, asked)
    assert answer.status_code == 200
    assert len(answer.json()["jobs"]) == 5
    assert [device["key"] for device in answer.json()["devices"]] == ["cpu", "extra 1"]
    assert held_farm.daemon.api("GET", "/jobs") == before
    assert held_farm.daemon.api("GET", "/policy")["windows"] == []


@pytest.mark.parametrize(
    ("body", "status", "code", "named"),
    [
        ({"devices": [{"name": "GTX 480"}]}, 400, "DAEMON-REQUEST-INVALID", "memory_gb"),
        ({"device": []}, 400, "DAEMON-REQUEST-INVALID", "device"),
        ({"without_devices": ["cuda:9"]}, 400, "DAEMON-REQUEST-INVALID", "cuda:9"),
        ({"jobs": [{"like": 99}]}, 404, "RUN-NOT-FOUND", ""),
    ],
)
def test_what_cannot_be_planned_is_refused(
    held_farm: Farm, body: Any, status: int, code: str, named: str
) -> None:
    answer = _post(held_farm, body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert named in answer.json()["why"]


def test_the_daemon_loads_no_solver_for_it(held_farm: Farm) -> None:
    held_farm.daemon.api("GET", "/plan")
    process = held_farm.daemon.process
    assert process is not None
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "highs" not in maps
