"""Jobs are continued over the API, by real workers, and the chain is told on both ends."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.queueing import Farm
from support.tiny import chat_rows, write_jsonl

from slidepack.engine.contract.errors import CATALOGUE

_SHORT: dict[str, Any] = {"steps": 6, "eval_every_steps": 3, "dropout": 0.0}


@pytest.fixture(scope="module")
def parent(served_farm: Farm) -> int:
    """A completed job."""
    job_id = served_farm.queue(name="Stones", **_SHORT)
    served_farm.finish(job_id)
    return job_id


def _continue(farm: Farm, job_id: int, **request: Any) -> Any:
    return farm.daemon.api("POST", f"/jobs/{job_id}/continue", json=request)


def _refused(farm: Farm, job_id: int, code: str, **request: Any) -> Any:
    with farm.daemon.http() as client:
        response: httpx.Response = client.post(f"/api/v1/jobs/{job_id}/continue", json=request)
    assert response.json()["code"] == code, response.text
    assert response.status_code == CATALOGUE[code].http_status
    return response.json()


@pytest.mark.full
def test_a_chain_of_jobs_begins_each_where_the_one_before_ended(
    served_farm: Farm, parent: int
) -> None:
    child = _continue(served_farm, parent)
    assert (child["name"], child["continues"]) == ("Stones, continued", parent)
    assert served_farm.daemon.job(parent)["continued_by"] == [child["id"]]
    spec = served_farm.detail(child["id"])["spec"]
    before = served_farm.detail(parent)["spec"]
    assert (spec["steps"], spec["seed"], spec["eval"]["split_seed"]) == (6, 6, before["seed"])
    origin = spec["continues"]
    assert (origin["job"], origin["step"], origin["taken"]) == (str(parent), 6, "state")
    served_farm.finish(child["id"])
    last = _continue(served_farm, child["id"], steps=5000, lr=1e-4, warmup_fraction=0.0)
    assert last["name"] == "Stones, continued"
    first, second = (served_farm.detail(job_id)["evaluations"] for job_id in (parent, child["id"]))
    assert (second[0]["step"], second[0]["loss"]) == (0, first[-1]["loss"])
    summary = Path(served_farm.daemon.job(child["id"])["result"]) / "summary.json"
    base_loss = json.loads(summary.read_text())["eval_loss_base"]
    assert base_loss == first[0]["loss"]
    spec = served_farm.detail(last["id"])["spec"]
    assert spec["continues"]["base_loss"] == base_loss
    assert (spec["optim"]["lr"], spec["optim"]["warmup_fraction"]) == (1e-4, 0.0)
    assert len(spec["continues"]["trained_on"]) == 2
    served_farm.act(last["id"], "cancel")


@pytest.mark.full
def test_a_child_outlives_its_parent(served_farm: Farm) -> None:
    farm = served_farm
    parent = farm.queue(**_SHORT)
    farm.finish(parent)
    with farm.daemon.paused():
        child = _continue(farm, parent)
        loss = farm.detail(parent)["evaluations"][-1]["loss"]
        farm.daemon.api("DELETE", f"/jobs/{parent}")
    assert farm.daemon.job(child["id"])["continues"] is None
    origin = Path(farm.detail(child["id"])["spec"]["continues"]["path"])
    assert origin.is_relative_to(farm.daemon.home / "origins")
    farm.finish(child["id"])
    assert farm.detail(child["id"])["evaluations"][0]["loss"] == loss
    assert f"job {parent}, which was deleted" in _page(farm, child["id"])


def _page(farm: Farm, job_id: int) -> str:
    with farm.daemon.http() as client:
        return client.get(f"/jobs/{job_id}").text


@pytest.mark.full
def test_other_data_and_settings(served_farm: Farm, parent: int, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "more.jsonl", chat_rows(50))
    dataset = served_farm.daemon.upload(rows)
    request = {"name": "On more", "dataset": dataset, "epochs": 1.0, "batch_size": 8}
    job = _continue(served_farm, parent, weights_only=True, dropout=0.1, **request)
    spec = served_farm.detail(job["id"])["spec"]
    assert (job["name"], job["dataset_id"]) == ("On more", dataset)
    assert (spec["epochs"], spec["steps"], spec["batch_size"]) == (1.0, 0, 8)
    assert spec["method"]["dropout"] == 0.1
    assert spec["continues"]["taken"] == "weights"
    assert spec["continues"]["base_loss"] is None, "the base was measured on other rows"
    served_farm.finish(job["id"])
    warnings = served_farm.detail(job["id"])["warnings"]
    assert "DATA-OVERLAP" not in [warning["code"] for warning in warnings]


@pytest.mark.full
def test_a_cancelled_job_is_continued_from_its_last_checkpoint(served_farm: Farm) -> None:
    farm = served_farm
    job_id = farm.queue(steps=4000, checkpoint_every_steps=5)
    _refused(farm, job_id, "RUN-STATE")
    farm.reach(job_id, 8)
    farm.act(job_id, "cancel")
    farm.daemon.wait_for(job_id, "cancelled")
    child = _continue(farm, job_id, steps=2, warmup_fraction=0.0)
    origin = farm.detail(child["id"])["spec"]["continues"]
    assert (origin["kind"], origin["taken"]) == ("checkpoint", "state")
    assert origin["step"] >= 8
    farm.finish(child["id"])


@pytest.mark.full
def test_what_cannot_be_continued_is_refused(served_farm: Farm, parent: int) -> None:
    farm = served_farm
    _refused(farm, 9999, "RUN-NOT-FOUND")
    waiting = farm.queue(steps=2, not_before=4e9)
    assert "queued" in _refused(farm, waiting, "RUN-STATE")["why"]
    farm.act(waiting, "cancel")
    assert "no result" in _refused(farm, waiting, "RUN-NO-CHECKPOINT")["why"]
    _refused(farm, parent, "DATA-NOT-FOUND", dataset=9999)
    assert "lr is 3" in _refused(farm, parent, "RUN-SPEC-INVALID", lr=3.0)["why"]
    assert "exactly one" in _refused(farm, parent, "RUN-SPEC-INVALID", epochs=1.0, steps=2)["why"]
    assert "dropout is 2" in _refused(farm, parent, "RUN-SPEC-INVALID", dropout=2.0)["why"]
    held = farm.detail(parent)["spec"]["dataset"]["dataset_id"]
    refusal = _refused(farm, parent, "RUN-CHECKPOINT-OTHER-JOB", held_out=int(held))
    assert "held-out rows were taken from other rows" in refusal["why"]
    _refused(farm, parent, "DAEMON-REQUEST-INVALID", alpha=99)
    with farm.daemon.http() as client:
        answer = client.post(f"/api/v1/jobs/{parent}/retry", json={"resume": True})
    assert answer.json()["code"] == "RUN-NO-CHECKPOINT"
    assert "slidepack jobs continue" in answer.json()["fix"]


@pytest.mark.full
def test_a_whole_model_goes_on_from_its_result(served_farm: Farm) -> None:
    farm = served_farm
    job_id = farm.queue(method="full", **(_SHORT | {"lr": 1e-3}))
    farm.finish(job_id)
    child = _continue(farm, job_id, steps=3)
    origin = farm.detail(child["id"])["spec"]["continues"]
    assert origin["step"] == 6
    assert origin["kind"] in ("model", "checkpoint"), "its last checkpoint goes within seconds"
    farm.finish(child["id"])
    before, after = (farm.detail(one)["evaluations"] for one in (job_id, child["id"]))
    assert after[0]["loss"] == before[-1]["loss"]


def test_a_form_queues_it_and_leads_to_its_page(served_farm: Farm, parent: int) -> None:
    with served_farm.daemon.http() as client:
        page = client.get(f"/jobs/{parent}").text
        assert 'id="go-on"' in page
        form = {"epochs": "", "lr": "2e-4", "dataset": ""}
        answer = client.post(f"/jobs/{parent}/continue", data=form)
        assert answer.status_code == 200, answer.text
        child = int(answer.headers["hx-redirect"].rsplit("/", 1)[1])
        assert served_farm.detail(child)["spec"]["optim"]["lr"] == 2e-4
        assert f'<a href="/jobs/{parent}">job {parent}</a>' in client.get(f"/jobs/{child}").text
        assert f'<a href="/jobs/{child}">' in client.get(f"/jobs/{parent}").text
        wrong = client.post(f"/jobs/{parent}/continue", data={"epochs": "many"})
        assert "epochs is many; use a number" in wrong.text
