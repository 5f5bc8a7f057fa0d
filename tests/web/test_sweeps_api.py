"""Sweeps over the API of a real daemon: queued, trained, ranked, cancelled, deleted."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm, make_farm

FIXED = {"steps": 4, "batch_size": 4, "max_seq_len": 128, "alpha_times_rank": 2}


@pytest.fixture(scope="module")
def farm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """A daemon of this file's own: sweeps would stand before the jobs of other tests."""
    folder = tmp_path_factory.mktemp("sweeps")
    with DaemonProcess(folder / "home") as daemon:
        yield make_farm(daemon, tiny_model, folder)


def _call(farm: Farm, method: str, path: str, body: Any = None) -> httpx.Response:
    with farm.daemon.http() as client:
        return client.request(method, f"/api/v1{path}", json=body)


def _request(farm: Farm, **fields: Any) -> dict[str, Any]:
    return {"model": farm.model, "dataset": farm.dataset, "fixed": FIXED, **fields}


@pytest.mark.full
def test_a_sweep_from_its_request_to_its_best_adapter(farm: Farm) -> None:
    request = _request(farm, name="stones", grid={"lr": [1e-5, 2e-2]})
    queued = farm.daemon.api("POST", "/sweeps", json=request)
    path = f"/sweeps/{queued['sweep_id']}"
    more = farm.daemon.api("POST", f"{path}/members", json={"members": [{"lr": 1e-4}]})
    jobs = [*queued["jobs"], *more["jobs"]]
    for job_id in jobs:
        farm.finish(job_id)
    table = farm.daemon.api("GET", path)
    assert table["differ"] == ["lr"]
    losses = [row["loss"] for row in table["members"]]
    assert losses == sorted(losses)
    # In so few steps the largest rate learns most.
    first = table["members"][0]
    assert (first["settings"], first["best"]) == ({"lr": 2e-2}, True)
    best = farm.daemon.api("GET", f"{path}/best")
    assert best == table["best"]
    assert (best["job_id"], best["name"]) == (first["job_id"], "stones lr=0.02")
    assert best["test_loss"] is not None
    assert (Path(best["adapter"]) / "adapter_model.safetensors").is_file()
    tested = farm.daemon.api("GET", f"{path}?by=test")
    losses = [row["test_loss"] for row in tested["members"]]
    assert losses == sorted(losses)
    assert (tested["by"], tested["best"]) == ("test", best)
    assert "looked at 3 times" in tested["note"]
    assert _call(farm, "GET", f"{path}?by=luck").json()["code"] == "DAEMON-REQUEST-INVALID"
    judgement = farm.daemon.api("GET", f"/jobs/{first['job_id']}")["judgement"]
    assert (judgement["split"], judgement["step"]) == ("test", 4)
    assert [one["voice"] for one in judgement["figures"][0]["measured"]] == ["base", "tuned"]
    (listed,) = farm.daemon.api("GET", "/sweeps")
    assert (listed["states"], listed["best"]) == ({"completed": 3}, best)
    assert farm.daemon.job(first["job_id"])["sweep_id"] == queued["sweep_id"]
    farm.daemon.api("DELETE", path)
    assert _call(farm, "GET", path).json()["code"] == "RUN-NOT-FOUND"
    assert _call(farm, "GET", f"/jobs/{first['job_id']}").status_code == 404


def test_a_sweep_is_cancelled_and_deleted(farm: Farm) -> None:
    farm.daemon.api("POST", "/queue/pause")
    queued = farm.daemon.api("POST", "/sweeps", json=_request(farm, grid={"rank": [1, 2, 4]}))
    path = f"/sweeps/{queued['sweep_id']}"
    refused = _call(farm, "DELETE", path)
    assert (refused.status_code, refused.json()["code"]) == (409, "RUN-STATE")
    nothing = _call(farm, "GET", f"{path}/best")
    assert (nothing.status_code, nothing.json()["code"]) == (409, "RUN-NO-RESULT")
    table = farm.daemon.api("POST", f"{path}/cancel")
    assert {row["state"] for row in table["members"]} == {"cancelled"}
    farm.daemon.api("DELETE", path)
    assert queued["sweep_id"] not in [one["id"] for one in farm.daemon.api("GET", "/sweeps")]
    farm.daemon.api("POST", "/queue/resume")


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"grid": {"rang": [1]}}, 422, "rang in [grid] is not known"),
        ({"grid": {"seed": list(range(501))}}, 422, "it has 501 members"),
        ({"grid": {"rank": [0]}}, 422, "rank is 0"),
        ({"grid": {"rank": [1]}, "halving": {"first_samples": 0}}, 400, "first_samples is 0"),
        ({"grid": {"rank": [1]}, "haste": 1}, 400, "haste"),
        ({"grid": {"rank": [1]}, "model": "none"}, 404, "no model called none"),
        ({"grid": {"rank": [1]}, "dataset": 99}, 404, "no dataset 99"),
    ],
)
def test_what_cannot_be_queued_leaves_nothing(
    farm: Farm, fields: dict[str, Any], status: int, said: str
) -> None:
    before = farm.daemon.api("GET", "/jobs")
    answer = _call(farm, "POST", "/sweeps", _request(farm) | fields)
    assert answer.status_code == status, answer.text
    assert said in f"{answer.json()['what']} {answer.json()['why']}"
    assert farm.daemon.api("GET", "/jobs") == before


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/sweeps/99"),
        ("GET", "/sweeps/99/best"),
        ("POST", "/sweeps/99/cancel"),
        ("DELETE", "/sweeps/99"),
    ],
)
def test_a_sweep_that_is_not_there(farm: Farm, method: str, path: str) -> None:
    answer = _call(farm, method, path)
    assert (answer.status_code, answer.json()["code"]) == (404, "RUN-NOT-FOUND")


def test_sweeps_need_a_login_as_everything_does(farm: Farm) -> None:
    url = farm.daemon.address.url
    for method, path in (("GET", "/sweeps"), ("POST", "/sweeps"), ("DELETE", "/sweeps/1")):
        answer = httpx.request(method, f"{url}/api/v1{path}", json={}, trust_env=False)
        assert answer.status_code == 401, path
