"""Exports through the API of a real daemon: made, downloaded, kept when their job goes, deleted."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
from support.exporting import EXPORTER, finish_export
from support.held import Births
from support.queueing import Farm

from slidepack.engine.contract.errors import CATALOGUE

_PEFT = {"format": "peft", "verify": False}


def _add(farm: Farm, job_id: int, **wanted: Any) -> int:
    body = _PEFT | wanted
    return int(farm.daemon.api("POST", f"/jobs/{job_id}/exports", json=body)["id"])


def _refused(farm: Farm, method: str, path: str, **arguments: Any) -> str:
    with farm.daemon.http() as client:
        response = client.request(method, f"/api/v1{path}", **arguments)
    code = str(response.json()["code"])
    assert response.status_code == CATALOGUE[code].http_status
    return code


def test_an_export_is_made_downloaded_and_deleted(served_farm: Farm) -> None:
    daemon = served_farm.daemon
    known = daemon.api("GET", "/jobs/1/exports")
    forms = [(o["wanted"]["format"], o["wanted"]["quant"]) for o in known["offers"]]
    assert forms == [
        ("peft", "f16"),
        ("merged", "f16"),
        ("gguf", "f16"),
        ("gguf", "q8_0"),
        ("ollama", "q8_0"),
    ]
    export_id = _add(served_farm, 1, name="../My <bot>\n")
    done = finish_export(daemon, export_id)
    assert (done["state"], done["verification"], done["error"]) == ("done", None, None)
    assert done["bytes"] >= sum(done["files"].values()) > 0
    assert sum(done["files"].values()) <= known["offers"][0]["bytes"]
    adapter = Path(daemon.job(1)["result"]) / "adapter"
    with daemon.http() as client:
        whole = client.get(f"/api/v1/exports/{export_id}/archive")
        name = whole.headers["content-disposition"]
        assert name == 'attachment; filename="my-bot-peft.tar"'
        assert int(whole.headers["content-length"]) == len(whole.content)
        with tarfile.open(fileobj=io.BytesIO(whole.content)) as archive:
            for member in archive.getmembers():
                folder, _, file = member.name.partition("/")
                read = archive.extractfile(member)
                assert folder == "my-bot-peft" and read is not None
                assert read.read() == (adapter / file).read_bytes()
        half = len(whole.content) // 2
        header = {"range": f"bytes={half}-", "if-range": whole.headers["etag"]}
        rest = client.get(f"/api/v1/exports/{export_id}/archive", headers=header)
        assert (rest.status_code, rest.content) == (206, whole.content[half:])
        for file in done["files"]:
            one = client.get(f"/api/v1/exports/{export_id}/files/{file}")
            assert one.content == (adapter / file).read_bytes()
    for name in ("request.json", "..%2Frequest.json", "%2Fetc%2Fpasswd", "nothing"):
        path = f"/exports/{export_id}/files/{name}"
        with daemon.http() as client:
            assert client.get(f"/api/v1{path}").status_code in (400, 404), name
    assert export_id in [export["id"] for export in daemon.api("GET", "/exports")]
    removed = daemon.api("DELETE", f"/exports/{export_id}")
    assert removed == {"removed": export_id, "freed_bytes": done["bytes"]}
    assert not Path(done["folder"]).parent.exists()
    assert _refused(served_farm, "GET", f"/exports/{export_id}") == "EXPORT-NOT-FOUND"


@pytest.mark.full
def test_an_export_outlives_its_job(served_farm: Farm) -> None:
    daemon = served_farm.daemon
    job_id = served_farm.queue(steps=2, eval_every_steps=0, sample_prompts=[])
    served_farm.finish(job_id)
    with Births(daemon, EXPORTER) as exporters:
        export_id = _add(served_farm, job_id)
        exporters.next()
        assert _refused(served_farm, "DELETE", f"/jobs/{job_id}") == "RUN-STATE"
        assert _refused(served_farm, "GET", f"/exports/{export_id}/archive") == "EXPORT-STATE"
        assert _refused(served_farm, "DELETE", f"/exports/{export_id}") == "EXPORT-STATE"
    finish_export(daemon, export_id)
    removed = daemon.api("DELETE", f"/jobs/{job_id}")
    assert [export["id"] for export in removed["exports"]] == [export_id]
    assert _refused(served_farm, "GET", f"/jobs/{job_id}") == "RUN-NOT-FOUND"
    with daemon.http() as client:
        assert client.get(f"/api/v1/exports/{export_id}/archive").status_code == 200
    assert daemon.api("DELETE", f"/exports/{export_id}")["freed_bytes"] > 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"format": "onnx"}, "DAEMON-REQUEST-INVALID"),
        ({"format": "gguf", "quant": "q4_0"}, "DAEMON-REQUEST-INVALID"),
        ({"format": "peft", "to": "/etc"}, "DAEMON-REQUEST-INVALID"),
        ({"format": "merged", "adapter_only": True}, "EXPORT-INVALID"),
    ],
)
def test_what_makes_no_sense_is_refused(served_farm: Farm, body: dict[str, Any], code: str) -> None:
    assert _refused(served_farm, "POST", "/jobs/1/exports", json=body) == code
    assert _refused(served_farm, "POST", "/jobs/999/exports", json=_PEFT) == "RUN-NOT-FOUND"


def test_a_job_that_is_not_completed_has_nothing_to_export(served_farm: Farm) -> None:
    job_id = served_farm.queue(steps=2, not_before=4e9)
    assert _refused(served_farm, "POST", f"/jobs/{job_id}/exports", json=_PEFT) == "RUN-NO-RESULT"
    assert served_farm.daemon.api("GET", f"/jobs/{job_id}/exports")["offers"] == []
    with served_farm.daemon.http() as client:
        assert "Use it" not in client.get(f"/jobs/{job_id}").text
    served_farm.act(job_id, "cancel")


def test_what_cannot_be_written_is_said_at_once(served_farm: Farm) -> None:
    for path in ("/exports/987/archive", "/exports/987/files/a", "/exports/987"):
        assert _refused(served_farm, "GET", path) == "EXPORT-NOT-FOUND"
    assert _refused(served_farm, "POST", "/exports/987/cancel") == "EXPORT-NOT-FOUND"
