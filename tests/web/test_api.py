"""The API's answers: results, streams, and what it says to requests that make no sense."""

import io
import sqlite3
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.daemons import DaemonProcess
from support.line_ends import lines_of
from support.queueing import Farm


def _stored_ids(daemon: DaemonProcess, job_id: int) -> list[tuple[int, str]]:
    connection = sqlite3.connect(daemon.home / "slidepack.db")
    rows = connection.execute(
        "SELECT id, type FROM events WHERE job_id = ? ORDER BY id", (job_id,)
    ).fetchall()
    connection.close()
    return rows


def _read_stream(daemon: DaemonProcess, path: str, last: int, **options: Any) -> list[list[str]]:
    """Return id, name and data of a stream's messages up to the one with the id `last`."""
    messages: list[list[str]] = []
    fields: dict[str, str] = {}
    with daemon.http() as client, client.stream("GET", path, **options) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in lines_of(response):
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
                continue
            if "id" in fields:
                messages.append([fields["id"], fields["event"], fields["data"]])
                if int(fields["id"]) == last:
                    break
            fields = {}
    return messages


def test_a_stream_replays_exactly_what_was_missed(served_farm: Farm) -> None:
    daemon = served_farm.daemon
    # One of long ago keeps no events that only told of steps.
    job = served_farm.queue(steps=8)
    served_farm.finish(job)
    stored = _stored_ids(daemon, job)
    last = stored[-1][0]
    path = f"/api/v1/jobs/{job}/stream"
    whole = _read_stream(daemon, path, last)
    assert [int(message[0]) for message in whole] == [number for number, _ in stored]
    kinds = {kind for _, kind in stored}
    assert {"started", "progress", "eval", "checkpoint", "finished"} <= kinds
    for (_, kind), (_, event, data) in zip(stored, whole, strict=True):
        assert event == (kind if kind in ("progress", "eval") else "changed")
        assert kind != "progress" or '"loss":' in data
    for cut in (1, len(stored) // 2, len(stored) - 1):
        seen = str(stored[cut - 1][0])
        header = {"last-event-id": seen}
        assert _read_stream(daemon, path, last, headers=header) == whole[cut:]
        assert _read_stream(daemon, f"{path}?after={seen}", last) == whole[cut:]
    nonsense = {"last-event-id": "²".encode("latin-1")}
    assert _read_stream(daemon, path, last, headers=nonsense) == whole


def test_a_stream_of_no_job_is_not_found(served_farm: Farm) -> None:
    with served_farm.daemon.http() as client:
        answer = client.get("/api/v1/jobs/987/stream")
    assert (answer.status_code, answer.json()["code"]) == (404, "RUN-NOT-FOUND")


def test_streams_end_when_the_daemon_stops(daemon: DaemonProcess) -> None:
    with daemon.http() as client, client.stream("GET", "/api/v1/stream") as response:
        lines = lines_of(response)
        assert next(lines).startswith(("event", "data", "id", "retry"))
        stopper = threading.Thread(target=daemon.stop)
        stopper.start()
        # A stream that is cut instead of ended raises here.
        for _ in lines:
            pass
        stopper.join()
    assert "Traceback" not in daemon.log
    assert "Cancel" not in daemon.log, "the server did not have to cut the stream"


def test_no_adapter_before_the_end_and_a_zip_after(served_farm: Farm) -> None:
    daemon = served_farm.daemon
    waiting = served_farm.queue(steps=2, not_before=4e9)
    with daemon.http() as client:
        early = client.get(f"/api/v1/jobs/{waiting}/adapter")
        assert (early.status_code, early.json()["code"]) == (409, "RUN-NO-RESULT")
        assert client.get("/api/v1/jobs/987/adapter").status_code == 404

        result = Path(daemon.job(1)["result"])
        (result / "adapter.zip").unlink(missing_ok=True)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: _download(daemon), range(4)))
        assert {path.name for path in result.iterdir()} == {
            "adapter",
            "adapter.zip",
            "summary.json",
        }
        for answer in answers:
            assert answer.headers["content-type"] == "application/zip"
            assert "attachment" in answer.headers["content-disposition"]
            archive = zipfile.ZipFile(io.BytesIO(answer.content))
            assert archive.testzip() is None
            names = archive.namelist()
            assert {"adapter/adapter_model.safetensors", "adapter/adapter_config.json"} <= set(
                names
            )
            assert all(name.startswith("adapter/") and ".." not in name for name in names)
            for name in names:
                assert archive.read(name) == (result / name).read_bytes()
    served_farm.act(waiting, "cancel")


def test_a_job_says_what_becomes_of_longer_rows(served_farm: Farm) -> None:
    shown = {"drop": "left out", "cut": "cut", "split": "split"}
    for changes in ({}, *({"too_long": policy} for policy in shown)):
        job_id = served_farm.queue(steps=2, not_before=4e9, **changes)
        served_farm.act(job_id, "cancel")
        policy = changes.get("too_long", "drop")
        assert served_farm.detail(job_id)["spec"]["too_long"] == policy
        with served_farm.daemon.http() as client:
            assert f"longer ones are {shown[policy]}<" in client.get(f"/jobs/{job_id}").text


@pytest.mark.full
def test_a_job_may_train_every_weight(served_farm: Farm) -> None:
    daemon = served_farm.daemon
    request = {
        "model": served_farm.model,
        "dataset": served_farm.dataset,
        "method": "full",
        "steps": 2,
        "max_seq_len": 128,
    }
    job_id = daemon.api("POST", "/jobs", json=request)["id"]
    spec = served_farm.detail(job_id)["spec"]
    nvme = spec["method"].pop("nvme")
    assert (nvme["allow"], nvme["folders"]) == (True, [])
    assert spec["method"] == {"kind": "full", "moments": "auto", "optimizer_engine": "auto"}
    assert spec["optim"]["lr"] == 2e-5
    model = Path(served_farm.finish(job_id)["result"]) / "model"
    assert (model / "model.safetensors").exists()
    with daemon.http() as client:
        refused = client.get(f"/api/v1/jobs/{job_id}/adapter")
        page = client.get(f"/jobs/{job_id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "RUN-NO-RESULT")
    assert str(model) in refused.json()["why"]
    assert page.status_code == 200
    assert f"<code>{model}</code>" in page.text
    assert "Download adapter" not in page.text


def _download(daemon: DaemonProcess) -> httpx.Response:
    with daemon.http() as client:
        return client.get("/api/v1/jobs/1/adapter")


@pytest.mark.parametrize(
    ("change", "status", "code", "word"),
    [
        ({"model": "nobody"}, 404, "MODEL-NOT-FOUND", "nobody"),
        ({"dataset": 987}, 404, "DATA-NOT-FOUND", "987"),
        ({"dataset": 10**30}, 404, "DATA-NOT-FOUND", ""),
        ({"held_out": 987}, 404, "DATA-NOT-FOUND", "987"),
        ({"rank": 0}, 422, "RUN-SPEC-INVALID", "rank"),
        ({"lr": 0}, 422, "RUN-SPEC-INVALID", "lr"),
        ({"lr": -1}, 422, "RUN-SPEC-INVALID", "lr"),
        ({"epochs": 0, "steps": 0}, 422, "RUN-SPEC-INVALID", "epochs"),
        ({"name": "n" * 300}, 422, "RUN-SPEC-INVALID", "name"),
        ({"targets": ["nope"]}, 422, "RUN-SPEC-INVALID", "nope"),
        ({"method": "magic"}, 400, "DAEMON-REQUEST-INVALID", "method"),
        ({"too_long": "shred"}, 400, "DAEMON-REQUEST-INVALID", "use drop, cut or split"),
        ({"too_long": None}, 400, "DAEMON-REQUEST-INVALID", "too_long"),
        ({"colour": "red"}, 400, "DAEMON-REQUEST-INVALID", "colour"),
        ({"batch_size": "many"}, 400, "DAEMON-REQUEST-INVALID", "batch_size"),
    ],
)
def test_a_job_that_cannot_run_is_refused(
    served_farm: Farm, change: dict[str, Any], status: int, code: str, word: str
) -> None:
    # Jobs of other tests on the same daemon may still be moving; that none came is what counts.
    before = {job["id"] for job in served_farm.daemon.api("GET", "/jobs")}
    request = {"model": served_farm.model, "dataset": served_farm.dataset} | change
    with served_farm.daemon.http() as client:
        answer = client.post("/api/v1/jobs", json=request)
    report = answer.json()
    assert (answer.status_code, report["code"]) == (status, code), report
    assert word in report["why"] + report["what"]
    assert "\n" not in report["why"]
    assert {job["id"] for job in served_farm.daemon.api("GET", "/jobs")} == before


def test_bodies_that_are_no_requests_are_refused(served_farm: Farm) -> None:
    logged = len(served_farm.daemon.log)
    with served_farm.daemon.http() as client:
        for body in (b"", b"{", b"null", b"[]", b"\xff", b"[" * 5000):
            answer = client.post("/api/v1/jobs", content=body)
            assert (answer.status_code, answer.json()["code"]) == (400, "DAEMON-REQUEST-INVALID")
        assert client.put("/api/v1/datasets", content=b"x").status_code == 400, "no name"
        assert client.patch("/api/v1/jobs").status_code == 405
    assert "Traceback" not in served_farm.daemon.log[logged:]


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("", "MODEL-NOT-FOUND"),
        ("/no/such/model", "MODEL-NOT-FOUND"),
        ("~nobody-of-that-name/model", "MODEL-NOT-FOUND"),
        ("/" + "x" * 5000, "MODEL-NOT-FOUND"),
        ("a\x00b", "MODEL-NOT-FOUND"),
        ("{tmp}/empty", "MODEL-NOT-A-MODEL"),
        ("{tmp}/notes.txt", "MODEL-NOT-A-MODEL"),
        ("{tmp}/pickled", "MODEL-PICKLE"),
        ("{tmp}/pickled/pytorch_model.bin", "MODEL-PICKLE"),
        ("{tmp}/other", "MODEL-UNSUPPORTED"),
    ],
)
def test_what_is_no_model_is_refused_at_once(
    served_farm: Farm, tmp_path: Path, source: str, code: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    for name, config in (("pickled", "LlamaForCausalLM"), ("other", "MambaForCausalLM")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(
            f'{{"architectures": ["{config}"], "model_type": "x"}}'
        )
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x02")
    before = served_farm.daemon.api("GET", "/models")
    with served_farm.daemon.http() as client:
        answer = client.post(
            "/api/v1/models", json={"source": source.replace("{tmp}", str(tmp_path))}
        )
    assert answer.json()["code"] == code, answer.text
    assert served_farm.daemon.api("GET", "/models") == before
