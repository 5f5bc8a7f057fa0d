"""The chat's routes: sessions, answers that stream, stopping, and who may ask."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.chat_farm import CHAT, chat_farm
from support.held import child, has_ended, held
from support.line_ends import lines_of
from support.queueing import Farm
from support.waiting import wait_until

_ASK: dict[str, Any] = {
    "voices": ["job-1", "base"],
    "messages": [{"role": "user", "content": "Name stone number 1"}],
    "sampling": {"temperature": 0.8, "seed": 7},
    "max_tokens": 12,
}
_CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 6,
    "seed": 3,
}
_PICTURE: dict[str, Any] = {"role": "user", "content": [{"type": "image_url"}]}
_COMPLETIONS = "/v1/chat/completions"


@pytest.fixture(scope="module")
def farm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with chat_farm(tiny_model, tmp_path_factory.mktemp("chat")) as made:
        yield made


@pytest.fixture
def client(farm: Farm) -> Iterator[httpx.Client]:
    with farm.daemon.http() as made:
        yield made


def _open(farm: Farm, **request: Any) -> str:
    return str(farm.daemon.api("POST", "/chat/sessions", json={"jobs": [1]} | request)["id"])


def _session(farm: Farm, session: str) -> Any:
    return farm.daemon.api("GET", f"/chat/sessions/{session}")


def _ended(farm: Farm, session: str) -> Any:
    def ended() -> Any:
        view = _session(farm, session)
        return view if view["state"] == "ended" else None

    return wait_until(ended, what="the chat has ended")


def _events(text: str) -> list[tuple[str, Any]]:
    """Read server-sent events by their own rules."""
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if {"event", "data"} <= fields.keys():
            found.append((fields["event"], msgspec.json.decode(fields["data"])))
    return found


def _text(events: list[tuple[str, Any]], voice: str) -> str:
    return "".join(
        data["text"] for name, data in events if name == "token" and data["voice"] == voice
    )


def _ask(client: httpx.Client, session: str, **changes: Any) -> list[tuple[str, Any]]:
    response = client.post(f"/api/v1/chat/sessions/{session}/asks", json=_ASK | changes)
    assert response.is_success, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return _events(response.text)


def _chunks(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else msgspec.json.decode(line) for line in lines]


def test_two_voices_stream_at_once_and_a_seed_repeats_them(
    farm: Farm, client: httpx.Client
) -> None:
    session = _open(farm)
    first = _ask(client, session)
    assert first[0][0] == "asked"
    assert {data["voice"] for name, data in first if name == "done"} == {"job-1", "base"}
    again, other = _ask(client, session), _ask(client, session, sampling={"temperature": 9.0})
    for voice in ("job-1", "base"):
        assert _text(first, voice) == _text(again, voice) != _text(other, voice)
    view = _session(farm, session)
    assert (view["state"], view["device"], view["answering"]) == ("ready", "cpu", 0)
    assert view["voices"][1]["mean_difference"] > 0


@contextmanager
def _asked_of_a_held_chat(
    farm: Farm, client: httpx.Client, session: str
) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the path of an ask that has begun, and its further lines; no token is made yet.

    A tiny model would be done before a second request comes.
    """
    path = f"/api/v1/chat/sessions/{session}/asks"
    with (
        held(child(farm.daemon, CHAT)),
        client.stream("POST", path, json=_ASK | {"max_tokens": 200}) as response,
    ):
        lines = lines_of(response)
        asked = next(line for line in lines if line.startswith("data: "))
        yield f"{path}/{msgspec.json.decode(asked.removeprefix('data: '))['id']}", lines


def test_an_answer_can_be_stopped(farm: Farm, client: httpx.Client) -> None:
    session = _open(farm)
    chat = child(farm.daemon, CHAT)
    with _asked_of_a_held_chat(farm, client, session) as (path, lines):
        assert client.delete(path).status_code == 204
        chat.resume()
        events = _events("\n".join(lines))
    ends = [data for name, data in events if name == "done"]
    assert [end["finish_reason"] for end in ends] == ["stopped", "stopped"]


def test_who_goes_away_ends_the_answer(farm: Farm, client: httpx.Client) -> None:
    session = _open(farm)
    with _asked_of_a_held_chat(farm, client, session):
        assert _session(farm, session)["answering"] == 1
    wait_until(lambda: _session(farm, session)["answering"] == 0, what="the answer has ended")


@pytest.mark.parametrize(
    ("body", "code", "status"),
    [
        ({"jobs": [99]}, "RUN-NOT-FOUND", 404),
        ({"model": "nope"}, "MODEL-NOT-FOUND", 404),
        ({"jobs": [1], "device": "cuda:7"}, "CHAT-REQUEST-INVALID", 422),
        ({"jobs": []}, "DAEMON-REQUEST-INVALID", 400),
        ({"jobs": [1], "wibble": 2}, "DAEMON-REQUEST-INVALID", 400),
    ],
)
def test_a_chat_that_cannot_be_is_refused(
    client: httpx.Client, body: dict[str, Any], code: str, status: int
) -> None:
    response = client.post("/api/v1/chat/sessions", json=body)
    assert (response.json()["code"], response.status_code) == (code, status)


@pytest.mark.parametrize(
    ("changes", "code", "status"),
    [
        ({"voices": ["job-9"]}, "CHAT-VOICE-UNKNOWN", 404),
        ({"voices": []}, "DAEMON-REQUEST-INVALID", 400),
        ({"voices": ["base", "base"]}, "CHAT-COMMAND-INVALID", 422),
        ({"messages": []}, "CHAT-COMMAND-INVALID", 422),
        ({"sampling": {"temperature": -1}}, "DAEMON-REQUEST-INVALID", 400),
        ({"own": {"job-9": []}}, "DAEMON-REQUEST-INVALID", 400),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(
    farm: Farm, client: httpx.Client, changes: dict[str, Any], code: str, status: int
) -> None:
    path = f"/api/v1/chat/sessions/{_open(farm)}/asks"
    response = client.post(path, json=_ASK | changes)
    assert (response.json()["code"], response.status_code) == (code, status)


def test_a_conversation_that_is_too_long_is_told_in_the_stream(
    farm: Farm, client: httpx.Client
) -> None:
    messages = [{"role": "user", "content": "a" * 400}]
    ends = [data for name, data in _ask(client, _open(farm), messages=messages) if name == "done"]
    assert {end["voice"] for end in ends} == {"job-1", "base"}
    assert {end["error"]["code"] for end in ends} == {"CHAT-CONTEXT-FULL"}


def test_jobs_wait_for_a_chat_and_go_on_when_it_ends(farm: Farm) -> None:
    session = _open(farm)
    job = farm.queue(steps=5000)
    why = "a chat with job 1 uses cpu; it ends 10 minutes after its last answer"
    wait_until(lambda: farm.daemon.job(job)["reason"] == why, what="the job says why it waits")
    assert farm.daemon.job(job)["state"] == "queued"
    farm.daemon.api("DELETE", f"/chat/sessions/{session}")
    farm.daemon.wait_for(job, "starting", "running")
    with farm.daemon.http() as client:
        response = client.post("/api/v1/chat/sessions", json={"jobs": [1]})
    assert response.json()["code"] == "CHAT-BUSY"
    assert f"job {job} trains there" in response.json()["why"]
    farm.act(job, "cancel")
    farm.daemon.wait_for(job, "cancelled")


@pytest.mark.full
def test_a_pause_ends_a_chat_within_seconds_and_keeps_others_away(
    farm: Farm, client: httpx.Client
) -> None:
    session = _open(farm)
    _ask(client, session)
    with farm.daemon.paused():
        assert "pause" in _ended(farm, session)["why"]
        refused = client.post("/api/v1/chat/sessions", json={"jobs": [1]})
        assert (refused.json()["code"], refused.status_code) == ("CHAT-HELD", 409)


def test_the_routes_are_in_the_schema(client: httpx.Client) -> None:
    paths = client.get("/schema/openapi.json").json()["paths"]
    assert "/api/v1/chat/sessions/{session_id}/asks" in paths


def test_models_lists_what_can_answer(farm: Farm, client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert {"job-1", f"base:{farm.model}"} <= {model["id"] for model in listed["data"]}
    assert client.get("/v1/models/job-1").json()["object"] == "model"
    missing = client.get("/v1/models/job-99")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "CHAT-VOICE-UNKNOWN")


@pytest.mark.full
def test_a_completion_is_in_openais_shape_and_a_seed_repeats_it(
    farm: Farm, client: httpx.Client
) -> None:
    body = _CHAT | {"model": "job-1"}
    answer = client.post(_COMPLETIONS, json=body).json()
    assert (answer["object"], answer["model"]) == ("chat.completion", "job-1")
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert (usage["completion_tokens"] == 6) == (choice["finish_reason"] == "length")
    again = client.post(_COMPLETIONS, json=body | {"model": "loaded"}).json()
    assert again["choices"] == answer["choices"]
    base = client.post(_COMPLETIONS, json=body | {"model": f"base:{farm.model}"}).json()
    assert base["choices"][0]["message"]["content"] != choice["message"]["content"]
    cut = client.post(_COMPLETIONS, json=body | {"stop": choice["message"]["content"][1:]}).json()
    assert cut["choices"][0]["message"]["content"] == choice["message"]["content"][:1]
    assert cut["choices"][0]["finish_reason"] == "stop"


def test_a_stream_of_chunks_adds_up_to_the_same_answer(client: httpx.Client) -> None:
    body = _CHAT | {"model": "job-1"}
    whole = client.post(_COMPLETIONS, json=body).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    response = client.post(_COMPLETIONS, json=body | options)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, used, last = _chunks(response.text)
    assert last == "[DONE]"
    assert (used["choices"], used["usage"]["total_tokens"]) == ([], whole["usage"]["total_tokens"])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert said == whole["choices"][0]["message"]["content"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole["choices"][0]["finish_reason"]]
    plain = _chunks(client.post(_COMPLETIONS, json=body | {"stream": True}).text)
    assert all("usage" not in chunk for chunk in plain[:-1])


def test_content_in_parts_and_harmless_fields_are_taken(client: httpx.Client) -> None:
    body = _CHAT | {"model": "job-1"}
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    harmless = {"user": "me", "n": 1, "tools": [], "presence_penalty": 0, "logprobs": None}
    harmless |= {"response_format": {"type": "text"}, "max_completion_tokens": 6}
    messages = [{"role": "user", "content": parts}]
    answers = [
        client.post(_COMPLETIONS, json=one).json()["choices"]
        for one in (body, body | harmless | {"messages": messages})
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("changes", "param", "status"),
    [
        ({"tools": [{"type": "function"}]}, "tools", 400),
        ({"n": 2}, "n", 400),
        ({"logprobs": True}, "logprobs", 400),
        ({"response_format": {"type": "json_object"}}, "response_format", 400),
        ({"wibble": 1}, "wibble", 400),
        ({"temperature": "hot"}, "temperature", 400),
        ({"top_p": 2}, "top_p", 400),
        ({"max_tokens": 0}, None, 422),
        ({"messages": [_PICTURE]}, "messages[0].content", 400),
        ({"model": "gpt-5"}, None, 404),
        ({"messages": [{"role": "user", "content": "a" * 400}]}, None, 422),
        ({"messages": [{"role": "user", "content": "a" * 400}], "stream": True}, None, 422),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    client: httpx.Client, changes: dict[str, Any], param: str | None, status: int
) -> None:
    response = client.post(_COMPLETIONS, json=_CHAT | {"model": "job-1"} | changes)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert error["type"] == "invalid_request_error"


def test_a_body_that_is_no_json_and_a_path_that_is_not_there(client: httpx.Client) -> None:
    assert client.post(_COMPLETIONS, content=b"{").json()["error"]["param"] == "body"
    assert client.get("/v1/files").status_code == 404
    assert client.get("/v1/files").json()["error"]["type"] == "invalid_request_error"


def test_nobody_asks_without_the_token_and_no_page_without_its_own(farm: Farm) -> None:
    url = farm.daemon.address.url
    with httpx.Client(base_url=url, trust_env=False) as stranger:
        refused = stranger.post(_COMPLETIONS, json=_CHAT | {"model": "job-1"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (
            401,
            "authentication_error",
        )
        assert stranger.get("/v1/models").status_code == 401
        stranger.get(farm.daemon.api("POST", "/login-links")["url"])
        assert stranger.get("/v1/models").status_code == 200
        for path in (_COMPLETIONS, "/api/v1/chat/sessions"):
            assert stranger.post(path, json={"jobs": [1]}).status_code == 403
        page = stranger.get("/jobs/1/chat")
        assert page.status_code == 200
        assert 'value="job-1"' in page.text


def test_the_page_of_a_job_that_is_not_completed_says_so(farm: Farm, client: httpx.Client) -> None:
    job = farm.queue(not_before=4e9)
    assert "it is queued" in client.get(f"/jobs/{job}/chat").text
    farm.act(job, "cancel")


def test_a_daemon_that_is_killed_leaves_no_chat(farm: Farm) -> None:
    _open(farm)
    chat = child(farm.daemon, CHAT)
    farm.daemon.kill()
    wait_until(lambda: has_ended(chat))
    farm.daemon.start()
    assert farm.daemon.api("GET", "/chat/sessions") == []
    assert list((farm.daemon.home / "chats").iterdir()) == []
