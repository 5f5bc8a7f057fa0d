"""Numbers in requests: whatever a client writes is answered, and never as a fault of ours."""

import pytest
from support.line_ends import lines_of
from support.queueing import Farm

from slidepack.web.header_values import whole_number

_TEXTS = ("9" * 5000, "9" * 19, "-" + "9" * 5000, "1e400", "0x10", "nan", "²", "٣")
_SHOWN = [text if len(text) < 30 else f"{text[:3]}-{len(text)}" for text in _TEXTS]


@pytest.mark.parametrize("text", [*_TEXTS, "1 ", " 1", "1\n", "+1", "1_0", ""])
def test_a_number_in_a_header_is_one_or_none(text: str) -> None:
    assert whole_number(text) is None


@pytest.mark.parametrize("number", [0, 7, 10**18 - 1])
def test_a_plain_number_is_read(number: int) -> None:
    assert whole_number(str(number)) == number


@pytest.mark.parametrize("text", _TEXTS, ids=_SHOWN)
def test_no_number_of_a_request_breaks_an_answer(served_farm: Farm, text: str) -> None:
    daemon = served_farm.daemon
    logged = len(daemon.log)
    job = {"model": served_farm.model, "dataset": served_farm.dataset}
    answers = []
    with daemon.http() as client:
        for path in (f"/api/v1/jobs/{text}", f"/jobs/{text}", f"/api/v1/datasets/{text}"):
            answers.append(client.get(path))
        # A limit that is a number at all is cut to what is listed.
        assert client.get("/api/v1/notices", params={"limit": text}).status_code < 500
        answers.append(client.get("/api/v1/jobs/987/stream", params={"after": text}))
        for body in (f'{{"seconds": {text}}}', f'{{"until": {text}}}'):
            answers.append(client.post("/api/v1/queue/pause", content=body))
        answers.append(client.post("/api/v1/jobs/1/move", content=f'{{"before": {text}}}'))
        answers.append(client.post("/api/v1/policy", content=f'{{"max_gpu_celsius": {text}}}'))
        form = {key: str(value) for key, value in job.items()} | {"steps": text}
        answers.append(client.post("/jobs", data=form))
    for answer in answers:
        # Digits of any script are digits in an address, and may name a job that there is.
        if answer.request.method == "GET" and answer.status_code == 200:
            continue
        assert 400 <= answer.status_code < 500, (answer.request.url.path[:60], answer.text[:300])
    assert daemon.api("GET", "/policy/state")["hold"] is None
    assert "Traceback" not in daemon.log[logged:]


@pytest.mark.parametrize("text", _TEXTS, ids=_SHOWN)
def test_a_stream_begins_whatever_its_last_event_was(served_farm: Farm, text: str) -> None:
    headers = {b"last-event-id": text.encode("utf-8")}
    path = "/api/v1/jobs/1/stream"
    with (
        served_farm.daemon.http() as client,
        client.stream("GET", path, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        first = next(line for line in lines_of(answer) if line.startswith("id: "))
        assert int(first.removeprefix("id: ")) > 0
