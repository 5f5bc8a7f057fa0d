"""The bytes of the live streams."""

import json
from typing import Any

from slidepack.web.batches import alive, make_batch, message


def _row(event_id: int, job_id: int, kind: str, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"type": kind, **fields}, separators=(",", ":"))
    return {"id": event_id, "job_id": job_id, "type": kind, "body": body}


def _parsed(stream: bytes) -> list[dict[str, str]]:
    blocks = stream.decode().split("\n\n")
    assert blocks[-1] == ""
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks[:-1]]


def test_steps_carry_their_job_and_everything_else_is_summed_up() -> None:
    rows = [
        _row(4, 1, "progress", step=7, loss=1.5),
        _row(5, 2, "started"),
        _row(6, 2, "eval", step=0, split="selection", loss=2.0),
    ]
    batch = make_batch(rows, last_id=3, states={9: "queued"}, version=12)
    assert batch.last_id == 6
    step, held_out, changed = _parsed(batch.shared)
    assert (step["id"], step["event"]) == ("4", "progress")
    assert json.loads(step["data"]) == {"job": 1, "type": "progress", "step": 7, "loss": 1.5}
    assert (held_out["id"], json.loads(held_out["data"])["job"]) == ("6", 2)
    assert (changed["id"], changed["event"]) == ("6", "changed")
    assert json.loads(changed["data"]) == {"jobs": [2, 9], "lists": True}
    assert _parsed(batch.note) == [{"event": "changed", "data": "12"}]


def test_who_listens_to_one_job_gets_its_own_events_as_they_were_stored() -> None:
    rows = [_row(4, 1, "progress", step=7), _row(5, 2, "started"), _row(6, 1, "checkpoint")]
    batch = make_batch(rows, last_id=3, states={1: "running"})
    assert _parsed(batch.by_job[1]) == [
        {"id": "4", "event": "progress", "data": '{"type":"progress","step":7}'},
        {"id": "6", "event": "changed", "data": '"checkpoint"'},
        {"event": "changed", "data": "running"},
    ]
    assert _parsed(batch.by_job[2]) == [{"id": "5", "event": "changed", "data": '"started"'}]


def test_steps_alone_are_no_news_for_lists() -> None:
    steps = make_batch([_row(4, 1, "progress", step=7)], last_id=3)
    told = json.loads(_parsed(steps.shared)[-1]["data"])
    assert told == {"jobs": [], "lists": False}
    unheard = make_batch((), last_id=3, lists=True)
    (changed,) = _parsed(unheard.shared)
    assert (changed["id"], json.loads(changed["data"])) == ("3", {"jobs": [], "lists": True})
    assert unheard.by_job == {}


def test_a_sign_of_life_is_an_event_for_scripts_and_a_comment_for_programs() -> None:
    batch = alive(8)
    assert _parsed(batch.shared) == [{"event": "alive", "data": "-"}]
    assert batch.note == batch.idle == b": alive\n\n"
    assert message(event="hello", data="1", event_id=0) == b"id: 0\nevent: hello\ndata: 1\n\n"
