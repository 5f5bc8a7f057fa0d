"""Passwords, sessions and tokens over HTTP, and what an attacker would try with them."""

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.daemons import DaemonProcess
from support.waiting import PATIENCE, wait_until

from slidepack.daemon.store.access import Tokens
from slidepack.daemon.store.database import Database
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.login_page import local_path

_PASSWORD = "correct horse battery"
_OTHER = "another one entirely"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("logins") / "home") as process:
        process.api("PUT", "/password", json={"new": _PASSWORD})
        yield process


@pytest.fixture
def restored(daemon: DaemonProcess) -> Iterator[None]:
    """Give the other tests their password back."""
    yield
    daemon.api("PUT", "/password", json={"new": _PASSWORD})


def _client(daemon: DaemonProcess, **headers: str) -> httpx.Client:
    return httpx.Client(
        base_url=daemon.address.url, headers=headers, trust_env=False, timeout=PATIENCE
    )


@pytest.fixture
def browser(daemon: DaemonProcess) -> Iterator[httpx.Client]:
    with _client(daemon, **{"user-agent": "Mozilla/5.0 (X11; Linux) Firefox/140.0"}) as client:
        assert _log_in(client).status_code == 303
        yield client


def _log_in(client: httpx.Client, typed: str = _PASSWORD, to: str = "/") -> httpx.Response:
    origin = str(client.base_url).rstrip("/")
    return client.post("/login", data={"password": typed, "to": to}, headers={"origin": origin})


def _csrf(client: httpx.Client) -> dict[str, str]:
    found = re.search(r"[0-9a-f]{64}", client.get("/settings").text)
    assert found
    return {"x-csrf-token": found.group()}


def test_only_the_password_logs_in_and_never_with_an_old_session(
    daemon: DaemonProcess, browser: httpx.Client
) -> None:
    with _client(daemon) as stranger:
        port = daemon.address.url.rsplit(":", 1)[1]
        stranger.cookies.set(f"slidepack_{port}", "chosen-by-somebody-else")
        wrong = _log_in(stranger, "wrong <one>")
        assert wrong.status_code == 401
        assert "DAEMON-ACCESS" in wrong.text
        assert "wrong &lt;one&gt;" not in wrong.text
        assert "wrong <one>" not in wrong.text
        assert "set-cookie" not in wrong.headers
        right = _log_in(stranger)
        assert right.status_code == 303
        given = right.headers["set-cookie"].partition(";")[0]
        assert "chosen-by-somebody-else" not in given
        assert "httponly" in right.headers["set-cookie"].casefold()
        again = _log_in(stranger).headers["set-cookie"].partition(";")[0]
        assert again != given, "each login is a session of its own"
        with _client(daemon, cookie=given) as old:
            assert old.get("/").status_code == 401, "and ends the one before"
    for secret in (_PASSWORD, "wrong <one>"):
        assert secret not in daemon.log


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ("/jobs/3?a=1#b", "/jobs/3?a=1#b"),
        ("/", "/"),
        ("", "/"),
        ("jobs", "/"),
        ("//evil.example", "/"),
        ("///evil.example", "/"),
        ("/\\evil.example", "/"),
        ("\\\\evil.example", "/"),
        ("/a//evil.example", "/"),
        ("http://evil.example/", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nset-cookie: x=1", "/"),
        ("/\t/evil.example", "/"),
        ("/é", "/"),
        ("/login", "/"),
        ("/login?token=x", "/"),
        ("/" + "a" * 600, "/"),
    ],
)
def test_a_login_leads_to_our_own_pages_only(wanted: str, path: str) -> None:
    assert local_path(wanted) == path


def test_the_way_back_is_checked_where_it_is_used(daemon: DaemonProcess) -> None:
    with _client(daemon) as client:
        for to in ("//evil.example", "https://evil.example", "/\\evil.example", "/x\r\nx-y: z"):
            answer = _log_in(client, to=to)
            assert (answer.status_code, answer.headers["location"]) == (303, "/")
            assert "x-y" not in answer.headers
        shown = client.get("/login", params={"to": "//evil.example"})
        assert shown.headers["location"] == "/"


def test_a_form_of_another_site_logs_nobody_in(daemon: DaemonProcess) -> None:
    with _client(daemon) as client:
        port = daemon.address.url.rsplit(":", 1)[1]
        for crossed in (
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": f"http://localhost:{port}"},
            {"origin": "http://127.0.0.1:1"},
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
        ):
            answer = client.post("/login", data={"password": _PASSWORD}, headers=crossed)
            assert answer.status_code == 403, crossed
            assert "set-cookie" not in answer.headers


def test_large_and_odd_bodies_of_the_login_are_refused(daemon: DaemonProcess) -> None:
    with _client(daemon) as client:
        assert client.post("/login", data={"password": "x" * 100_000}).status_code == 413

        def endless() -> Iterator[bytes]:
            yield b"password="
            for _ in range(100):
                yield b"x" * 1000

        form = {"content-type": "application/x-www-form-urlencoded"}
        assert client.post("/login", content=endless(), headers=form).status_code == 413
        for body, kind in (
            (b"\xff=%ff&password", form["content-type"]),
            (b"[]", "application/json"),
        ):
            answer = client.post("/login", content=body, headers={"content-type": kind})
            assert 400 <= answer.status_code < 500, answer.text
        daemon.api("PUT", "/password", json={"new": _PASSWORD})


@pytest.mark.full
def test_guessing_waits_and_says_how_long(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "home") as daemon, _client(daemon) as client:
        daemon.api("PUT", "/password", json={"new": _PASSWORD})
        # The waits double: however slow the machine is, one of them is longer than its pace.
        tries = (_log_in(client, f"guess number {n}") for n in range(12))
        seen = []
        for answer in tries:
            seen.append(answer)
            if answer.status_code == 429:
                break
        assert len(seen) > 4
        late = seen[-1]
        assert int(late.headers["retry-after"]) >= 1
        assert "DAEMON-TOO-MANY-TRIES" in late.text
        assert daemon.api("GET", "/health")["status"] == "ready"
        link = daemon.api("POST", "/login-links")["url"]
        assert client.get(link).status_code == 303, "links do not wait"
        changed = client.put(
            "/api/v1/password",
            json={"new": _OTHER, "old": "guess number 7"},
            headers=_csrf(client),
        )
        assert changed.status_code in (401, 429), "the old password cannot be guessed there"
        guesses = [client.get(f"/login?token=guess-{n}").status_code for n in range(12)]
        assert set(guesses) == {401}, "nobody guesses a link, so none has to wait"


@pytest.mark.full
def test_a_service_keeps_its_link_out_of_the_journal(tmp_path: Path) -> None:
    daemon = DaemonProcess(tmp_path / "home")
    process = subprocess.Popen(
        [sys.executable, "-m", "slidepack.web"],
        env=daemon.environment | {"JOURNAL_STREAM": "8:1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_until((daemon.home / "daemon.json").exists, what="the daemon is ready")
    process.terminate()
    said = process.communicate(timeout=PATIENCE)[0]
    assert "slidepack open" in said
    assert "token=" not in said


@pytest.mark.full
def test_a_flood_of_logins_is_turned_away_without_a_pile(tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "home") as daemon:
        daemon.api("PUT", "/password", json={"new": _PASSWORD})
        codes: list[int] = []

        def guess() -> None:
            with _client(daemon) as client:
                codes.append(_log_in(client, "not the password").status_code)

        threads = [threading.Thread(target=guess) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(codes) == {401, 429}
        assert codes.count(401) <= 9, "counted before they are looked at"


@pytest.mark.full
@pytest.mark.usefixtures("restored")
def test_a_new_password_ends_the_other_sessions_and_asks_for_the_old_one(
    daemon: DaemonProcess, browser: httpx.Client
) -> None:
    with _client(daemon) as other:
        assert _log_in(other).status_code == 303
        ours = _csrf(browser)
        refused = browser.put("/api/v1/password", json={"new": _OTHER, "old": "x"}, headers=ours)
        assert (refused.status_code, refused.json()["code"]) == (401, "DAEMON-ACCESS")
        weak = browser.put(
            "/api/v1/password", json={"new": "short", "old": _PASSWORD}, headers=ours
        )
        assert (weak.status_code, weak.json()["code"]) == (422, "DAEMON-PASSWORD-INVALID")
        same = browser.put(
            "/api/v1/password", json={"new": _PASSWORD, "old": _PASSWORD}, headers=ours
        )
        assert same.status_code == 422
        assert other.get("/").status_code == 200
        done = browser.put("/api/v1/password", json={"new": _OTHER, "old": _PASSWORD}, headers=ours)
        assert done.status_code == 204
        assert browser.get("/").status_code == 200
        assert other.get("/").status_code == 401
        assert _log_in(other, _PASSWORD).status_code == 401
        assert _log_in(other, _OTHER).status_code == 303


def test_sessions_are_listed_and_ended(daemon: DaemonProcess, browser: httpx.Client) -> None:
    with _client(daemon, **{"user-agent": "Mozilla/5.0 (iPhone) Safari/1"}) as phone:
        _log_in(phone)
        listed = daemon.api("GET", "/sessions")
        assert [session["browser"] for session in listed[:2]] == [
            "Safari on iPhone",
            "Firefox on Linux",
        ]
        assert all(session["address"] == "127.0.0.1" for session in listed)
        assert "token" not in str(listed)
        ours = _csrf(browser)
        assert browser.delete(f"/api/v1/sessions/{listed[0]['id']}", headers=ours).is_success
        assert phone.get("/").status_code == 401
        _log_in(phone)
        assert browser.delete("/api/v1/sessions", headers=ours).is_success
        assert phone.get("/").status_code == 401
        assert browser.get("/").status_code == 200
        gone = browser.post("/settings/sessions/end-all", headers=ours)
        assert gone.headers["hx-redirect"] == "/login"
        assert browser.get("/").status_code == 401


def test_logging_out_ends_the_session_itself(daemon: DaemonProcess, browser: httpx.Client) -> None:
    cookies = dict(browser.cookies)
    left = browser.post("/logout", headers=_csrf(browser))
    assert left.headers["hx-redirect"] == "/login"
    browser.cookies.clear()
    browser.cookies.update(cookies)
    assert browser.get("/").status_code == 401, "a copy of the cookie is worth nothing"


@pytest.mark.full
def test_an_open_stream_ends_with_its_session(daemon: DaemonProcess, browser: httpx.Client) -> None:
    ended = threading.Event()

    def read() -> None:
        with browser.stream("GET", "/api/v1/stream", timeout=PATIENCE) as response:
            assert response.status_code == 200
            begun.set()
            for _ in response.iter_raw():
                pass
        ended.set()

    begun = threading.Event()
    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(PATIENCE)
    daemon.api("DELETE", "/sessions")
    wait_until(ended.is_set, what="the stream ended")
    reader.join()


def test_a_token_may_do_what_its_scopes_say(daemon: DaemonProcess) -> None:
    allowed = {
        "read": {"GET /api/v1/jobs", "GET /metrics"},
        "jobs": {"GET /api/v1/jobs", "GET /metrics", "POST /api/v1/preflight"},
        "chat": {"GET /v1/models"},
    }
    asked = [*allowed["jobs"], "GET /v1/models", "GET /api/v1/tokens", "PUT /api/v1/password"]
    asked += ["POST /api/v1/login-links", "GET /", "GET /settings", "POST /settings/values"]
    allowed["admin"] = set(asked)
    for scope, routes in allowed.items():
        made = daemon.api("POST", "/tokens", json={"name": scope, "scopes": [scope]})
        with _client(daemon, authorization=f"Bearer {made['token']}") as script:
            for route in asked:
                method, _, path = route.partition(" ")
                answer = script.request(method, path)
                assert (answer.status_code == 403) is (route not in routes), (scope, route)
                assert answer.status_code != 401
    listed = daemon.api("GET", "/tokens")
    assert all(record["used_at"] for record in listed)
    assert "slp_" not in str(listed)
    assert b"slp_" not in (daemon.home / "slidepack.db").read_bytes()


def test_a_token_ends_at_once_and_a_wrong_one_is_none(daemon: DaemonProcess) -> None:
    made = daemon.api("POST", "/tokens", json={"name": "short", "scopes": ["read"], "days": 1})
    assert made["record"]["expires_at"] > made["record"]["created_at"]
    with _client(daemon, authorization=f"Bearer {made['token']}") as script:
        assert script.get("/api/v1/jobs").status_code == 200
        daemon.api("DELETE", f"/tokens/{made['record']['id']}")
        assert script.get("/api/v1/jobs").status_code == 401
    for wrong in ("slp_", made["token"][:-1], made["token"].upper(), "slp_" + "é"):
        header = [(b"authorization", f"Bearer {wrong}".encode("latin-1"))]
        with _client(daemon) as script:
            assert script.get("/api/v1/jobs", headers=header).status_code == 401
    with _client(daemon, authorization=f"Bearer {daemon.address.token}") as owner:
        for body in (
            {"name": "", "scopes": ["read"]},
            {"name": "x" * 61, "scopes": ["read"]},
            {"name": "a\nb", "scopes": ["read"]},
            {"name": "x", "scopes": []},
            {"name": "x", "scopes": ["all"]},
            {"name": "x", "scopes": ["read"], "days": 0},
            {"name": "x", "scopes": ["read"], "days": -1},
            {"name": "x", "scopes": ["read"], "days": 1e300},
        ):
            assert owner.post("/api/v1/tokens", json=body).status_code == 400, body
        assert owner.delete("/api/v1/tokens/987").status_code == 404


def test_a_token_that_has_expired_is_none(tmp_path: Path) -> None:
    tokens = Tokens(Database(tmp_path / "slidepack.db"))
    tokens.add("slp_x", "short", ("chat", "read", "chat"), 100.0, 200.0)
    found = tokens.find("slp_x", 199.0)
    assert found is not None
    assert found.scopes == ("read", "chat")
    assert tokens.find("slp_x", 200.0) is None
    with pytest.raises(SlidepackError):
        tokens.add("slp_y", "past", ("read",), 100.0, 100.0)


def test_a_path_in_disguise_is_no_other_path(daemon: DaemonProcess) -> None:
    read = daemon.api("POST", "/tokens", json={"name": "read", "scopes": ["read"]})["token"]
    host = daemon.address.url.removeprefix("http://")
    for target, statuses in {
        "//api/v1/tokens": (400,),
        "/api//v1/tokens": (400,),
        "/api/v1/jobs/../tokens": (400,),
        "/api/v1/jobs/%2e%2e/tokens": (400,),
        "/login/../api/v1/tokens": (400,),
        "/static/../api/v1/tokens": (400,),
        "/static/%2e%2e/api/v1/tokens": (400,),
        "/static/..%2fapi/v1/tokens": (400,),
        "/static\\..\\api": (400,),
        "/api/v1/tokens/": (403,),
        "/API/v1/tokens": (401, 403, 404),
        "/login/": (403,),
        "/loginx": (404, 401),
        "/api/v1/tokens%00": (400,),
        f"http://{host}/api/v1/tokens": (403, 400),
        "http://evil.example/api/v1/tokens": (403, 400),
        "/api/v1/tokens;x=1": (404, 403),
        "/api/v1/tokens?x=1": (403,),
    }.items():
        status = _raw(daemon, "GET", target, f"authorization: Bearer {read}")
        assert status in statuses, (target, status)


def test_other_methods_and_doubled_headers_open_nothing(daemon: DaemonProcess) -> None:
    for method in ("HEAD", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"):
        assert _raw(daemon, method, "/api/v1/tokens") in (400, 401, 405), method
    assert _raw(daemon, "GET", "/login", "host: evil.example") in (400, 403)
    upgrade = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13")
    key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    assert _raw(daemon, "GET", "/api/v1/stream", *upgrade, key) == 401
    spoofed = ("x-forwarded-for: 10.1.2.3", "x-forwarded-proto: https", "x-forwarded-host: evil")
    assert _raw(daemon, "GET", "/login", *spoofed) == 200
    origin = f"origin: https://{daemon.address.url.removeprefix('http://')}"
    assert _raw(daemon, "GET", "/login", *spoofed, origin) == 403


def _raw(daemon: DaemonProcess, method: str, target: str, *headers: str) -> int:
    """Send bytes as they are, which no client library would, and return the status."""
    host = daemon.address.url.removeprefix("http://")
    name, _, port = host.partition(":")
    lines = [f"{method} {target} HTTP/1.1", f"host: {host}", "connection: close", *headers, "", ""]
    with socket.create_connection((name, int(port)), timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join(lines).encode("latin-1"))
        return int(connection.makefile("rb").readline().split()[1])
