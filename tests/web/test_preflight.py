"""`POST /preflight`: what a job would come to, before it is queued."""

from typing import Any

from support.queueing import Farm
from support.waiting import PATIENCE


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


def test_what_makes_no_job_makes_no_preflight(served_farm: Farm) -> None:
    status, found = _asked(served_farm, model="nobody")
    assert status == 404
    assert "MODEL-NOT-FOUND" in str(found)
    status, _ = _asked(served_farm, max_seq_len=-1)
    assert status >= 400
