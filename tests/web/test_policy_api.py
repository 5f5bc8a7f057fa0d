"""The policy, its state and the user's pause over the API of a real daemon."""

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.daemons import DaemonProcess

from slidepack.daemon.policy.rules import Policy


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon of this file's own: a policy would hold up the jobs of other tests."""
    with DaemonProcess(tmp_path_factory.mktemp("policy") / "home") as started:
        yield started


WINDOW = {"days": ["mon", "fri"], "start": "23:00", "end": "07:00"}


def _call(daemon: DaemonProcess, method: str, path: str, body: Any = None) -> httpx.Response:
    with daemon.http() as client:
        return client.request(method, f"/api/v1{path}", json=body)


@pytest.mark.full
def test_the_policy_is_read_replaced_and_changed(daemon: DaemonProcess) -> None:
    first = daemon.api("GET", "/policy")
    assert set(first) == set(Policy.__struct_fields__)
    assert first["windows"] == []
    replaced = daemon.api("PUT", "/policy", json={"max_gpu_celsius": 80, "windows": [WINDOW]})
    assert (replaced["max_gpu_celsius"], replaced["windows"]) == (80, [WINDOW])
    changed = daemon.api("POST", "/policy", json={"exclusive_apps": ["cs2"]})
    assert changed == replaced | {"exclusive_apps": ["cs2"]}
    assert daemon.api("GET", "/policy") == changed
    daemon.stop()
    daemon.start()
    assert daemon.api("GET", "/policy") == changed


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_gpu_celsius": 10}, "max_gpu_celsius is 10"),
        ({"max_celsius": 80}, "max_celsius"),
        ({"windows": [WINDOW | {"end": "25:00"}]}, "end is '25:00'"),
        ({"windows": [WINDOW | {"days": ["someday"]}]}, "days"),
        ({"time_zone": "Europe/Atlantis"}, "time_zone"),
        ({"exclusive_apps": ["*"]}, "exclusive_apps"),
    ],
)
def test_an_invalid_policy_is_refused_with_the_field_named(
    shared_daemon: DaemonProcess, method: str, body: Any, named: str
) -> None:
    before = shared_daemon.api("GET", "/policy")
    answer = _call(shared_daemon, method, "/policy", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "DAEMON-REQUEST-INVALID")
    assert named in answer.json()["why"]
    assert shared_daemon.api("GET", "/policy") == before


@pytest.mark.full
def test_a_pause_is_sticky_and_resuming_ends_it(daemon: DaemonProcess) -> None:
    assert daemon.api("GET", "/policy/state")["hold"] is None
    state = daemon.api("POST", "/queue/pause")
    assert (state["hold"]["code"], state["may_run"]) == ("paused", False)
    assert state["hold"]["until"] is None
    daemon.kill()
    daemon.start()
    assert daemon.api("GET", "/policy/state")["hold"] == state["hold"]
    state = daemon.api("POST", "/queue/resume")
    assert (state["hold"], state["may_run"]) == (None, True)


def test_a_pause_may_have_an_end(shared_daemon: DaemonProcess) -> None:
    before = time.time()
    state = shared_daemon.api("POST", "/queue/pause", json={"seconds": 7200})
    assert before + 7200 <= state["hold"]["until"] <= time.time() + 7200
    assert state["next_change"] == state["hold"]["until"]
    assert state["summary"].startswith("you paused the queue until ")
    until = before + 3600
    state = shared_daemon.api("POST", "/queue/pause", json={"until": until})
    assert state["hold"]["until"] == until
    shared_daemon.api("POST", "/queue/resume")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"seconds": 0}, "seconds is 0"),
        ({"seconds": -5}, "seconds is -5"),
        ({"seconds": 1e12}, "seconds is 1e+12"),
        ({"until": 1000}, "until is 1000"),
        ({"until": 1.8e12}, "until is 1.8e+12"),
        ({"until": 1e300}, "until is 1e+300"),
        ({"until": -1e18}, "until is -1e+18"),
        ({"until": 10**400}, "until"),
        ({"seconds": 5, "until": 1e10}, "seconds and until"),
        ({"minutes": 5}, "minutes"),
    ],
)
def test_a_pause_that_cannot_be_is_refused(
    shared_daemon: DaemonProcess, body: Any, named: str
) -> None:
    answer = _call(shared_daemon, "POST", "/queue/pause", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "DAEMON-REQUEST-INVALID")
    assert named in answer.json()["why"]
    assert shared_daemon.api("GET", "/policy/state")["hold"] is None


@pytest.mark.full
@pytest.mark.parametrize("until", ["1.8e12", "1e300", "-1e18", '"soon"', "1e999"])
def test_whatever_pause_is_stored_the_daemon_lives(daemon: DaemonProcess, until: str) -> None:
    daemon.api("POST", "/queue/pause")
    daemon.kill()
    connection = sqlite3.connect(daemon.home / "slidepack.db")
    with connection:
        body = f'{{"since": 1e9, "until": {until}}}'
        connection.execute("UPDATE documents SET body = ? WHERE key = 'pause'", (body,))
    connection.close()
    daemon.start()
    with daemon.http() as client:
        for path in ("/", "/metrics", "/api/v1/policy/state", "/api/v1/digest"):
            assert client.get(path).status_code == 200, path
    hold = daemon.api("GET", "/policy/state")["hold"]
    if until == "-1e18":
        assert hold is None
    else:
        assert (hold["reason"], hold["until"]) == (
            "you paused the queue until you resume it",
            None,
        )
    assert daemon.api("POST", "/queue/resume")["may_run"]
    assert "Traceback" not in daemon.log


def test_windows_decide_the_state(shared_daemon: DaemonProcess) -> None:
    # A window that opened yesterday at this hour for a minute is closed now, in any zone.
    far = time.gmtime(time.time() + 12 * 3600)
    start = f"{far.tm_hour:02}:00"
    end = f"{far.tm_hour:02}:01"
    window = {"days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"], "start": start, "end": end}
    shared_daemon.api("POST", "/policy", json={"windows": [window], "time_zone": "UTC"})
    state = shared_daemon.api("GET", "/policy/state")
    assert (state["may_run"], state["window"]["open"]) == (False, False)
    assert state["next_change"] == state["window"]["until"] > time.time()
    assert state["summary"].startswith("the window opens ")
    assert state["summary"].endswith(start)
    shared_daemon.api("POST", "/policy", json={"windows": [], "time_zone": ""})
    assert shared_daemon.api("GET", "/policy/state")["may_run"]


def test_the_policy_needs_a_login_as_everything_does(shared_daemon: DaemonProcess) -> None:
    url = shared_daemon.address.url
    for method, path in (("GET", "/policy"), ("POST", "/queue/pause"), ("POST", "/policy")):
        answer = httpx.request(method, f"{url}/api/v1{path}", json={}, trust_env=False)
        assert answer.status_code == 401, path
    assert shared_daemon.api("GET", "/policy/state")["hold"] is None
