"""The API of notices: addresses without their secrets, tests, choices, the digest."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.notice_app import NoticeDaemon, notice_service, serving_notices
from support.notices import Receiver, deliver, receiving


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[NoticeDaemon]:
    with serving_notices(tmp_path, notice_service(tmp_path)) as served:
        yield served


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as served:
        yield served


@pytest.fixture
def http(daemon: NoticeDaemon) -> Iterator[httpx.Client]:
    with daemon.http() as client:
        yield client


def test_the_life_of_an_address(
    daemon: NoticeDaemon, http: httpx.Client, receiver: Receiver
) -> None:
    before = daemon.service.changes.version
    url = receiver.url("/s3cret")
    added = http.post("/api/v1/notifiers", json={"url": url, "name": "my phone"})
    assert added.status_code == 201
    record = added.json()
    assert set(record) == {"id", "name", "service", "shown", "created_at"}
    assert (record["name"], record["service"]) == ("my phone", "JSON")
    assert http.get("/api/v1/notifiers").json() == [record]

    works = http.post(f"/api/v1/notifiers/{record['id']}/test")
    assert (works.status_code, works.json()) == (
        200,
        {"notifier_id": record["id"], "ok": True, "error": ""},
    )
    receiver.status = 404
    fails = http.post(f"/api/v1/notifiers/{record['id']}/test")
    assert fails.status_code == 200
    assert not fails.json()["ok"]
    assert "404" in fails.json()["error"]

    daemon.notices.record("failed", "Job 3 failed", "why", 3, 1000.0)
    receiver.status = 200
    deliver(daemon.notices, 1000.0)
    listed = http.get("/api/v1/notices", params={"limit": 2}).json()
    assert [(n["kind"], n["deliveries"][0]["state"]) for n in listed] == [
        ("failed", "sent"),
        ("test", "failed"),
    ]
    assert receiver.titles[-1] == "Job 3 failed"
    answers = (added, works, fails, http.get("/api/v1/notices"), http.get("/api/v1/notifiers"))
    assert not [answer.text for answer in answers if "s3cret" in answer.text]

    assert http.delete(f"/api/v1/notifiers/{record['id']}").status_code == 204
    assert http.get("/api/v1/notifiers").json() == []
    assert daemon.service.changes.version > before, "live pages are told"


@pytest.mark.parametrize(
    "body",
    [
        {"url": "nosuch://s3cret"},
        {"url": "discord://s3cret"},
        {"url": "s3cret"},
        {"url": ["s3cret"]},
        {"url": "json://127.0.0.1/s3cret", "colour": "red"},
        {"url": "json://127.0.0.1/s3cret", "name": "x" * 61},
        {},
    ],
)
def test_a_refused_address_is_repeated_nowhere(
    http: httpx.Client, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    answer = http.post("/api/v1/notifiers", json=body)
    # A body that is none, or an address that is none.
    assert (answer.status_code, answer.json()["code"]) in (
        (400, "DAEMON-REQUEST-INVALID"),
        (422, "DAEMON-NOTIFIER-INVALID"),
    )
    assert "s3cret" not in answer.text + caplog.text
    assert http.get("/api/v1/notifiers").json() == []


def test_an_address_that_is_not_there_is_said_so(http: httpx.Client) -> None:
    for answer in (
        http.delete("/api/v1/notifiers/987"),
        http.post("/api/v1/notifiers/987/test"),
        http.post(f"/api/v1/notifiers/{10**30}/test"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "DAEMON-NOTIFIER-NOT-FOUND")
        assert "no notification address" in answer.json()["what"]


def test_settings_are_replaced_as_a_whole(http: httpx.Client) -> None:
    path = "/api/v1/notices/settings"
    defaults = http.get(path).json()
    assert defaults == {
        "sends": ["finished", "failed", "paused", "needs_you", "digest"],
        "quiet_from": "",
        "quiet_to": "",
        "digest_at": "08:00",
    }
    chosen = {"sends": ["failed"], "quiet_from": "23:00", "quiet_to": "07:00", "digest_at": ""}
    assert http.put(path, json=chosen).json() == chosen
    assert http.get(path).json() == chosen
    for wrong, word in (
        ({"sends": ["everything"]}, "everything"),
        ({"sends": ["test"]}, "test"),
        ({"quiet_from": "23:00"}, "quiet_to"),
        ({"digest_at": "noon"}, "noon"),
    ):
        answer = http.put(path, json=wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "DAEMON-REQUEST-INVALID")
        assert word in answer.json()["why"], answer.text
    assert http.get(path).json() == chosen


def test_the_digest_of_the_last_night(http: httpx.Client) -> None:
    digest = http.get("/api/v1/digest").json()
    assert digest["title"] == "Slidepack: nothing ran"
    assert digest["lines"] == ["Tonight: nothing is queued"]
    assert digest["night"]["until"] > digest["night"]["since"]
    assert digest["night"]["energy"]["joules"] is None


def test_nobody_gets_in_without_a_login(daemon: NoticeDaemon) -> None:
    with daemon.http(token=False) as stranger:
        for method, path in (
            ("GET", "/api/v1/notifiers"),
            ("POST", "/api/v1/notifiers"),
            ("GET", "/api/v1/notices"),
            ("PUT", "/api/v1/notices/settings"),
            ("GET", "/metrics"),
        ):
            assert stranger.request(method, path).status_code == 401, path
