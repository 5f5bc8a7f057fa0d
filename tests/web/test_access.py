"""Who gets in, and what every answer carries."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm
from support.stores import open_stores
from support.waiting import PATIENCE

from slidepack.daemon.passwords import Passwords
from slidepack.daemon.store.access import Sessions, Tokens
from slidepack.daemon.store.documents import Documents
from slidepack.engine.contract.errors import SlidepackError
from slidepack.web.access import Access
from slidepack.web.pages import page_router

_SAFE = {"GET", "HEAD", "OPTIONS"}
_ENDS_IT = ("/logout", "/settings/sessions/end-all")
"""They end the session that asks, which has tests of its own."""
_HEADERS = (
    "content-security-policy",
    "x-content-type-options",
    "x-frame-options",
    "referrer-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
)


@pytest.fixture(scope="module")
def daemon(served_farm: Farm) -> DaemonProcess:
    return served_farm.daemon


def _client(daemon: DaemonProcess) -> httpx.Client:
    return httpx.Client(base_url=daemon.address.url, trust_env=False, timeout=PATIENCE)


@pytest.fixture
def stranger(daemon: DaemonProcess) -> Iterator[httpx.Client]:
    with _client(daemon) as client:
        yield client


@pytest.fixture
def browser(daemon: DaemonProcess) -> Iterator[httpx.Client]:
    with _client(daemon) as client:
        _log_in(daemon, client)
        yield client


def _log_in(daemon: DaemonProcess, client: httpx.Client) -> str:
    """Log a browser in and return its CSRF token."""
    link = daemon.api("POST", "/login-links")["url"]
    assert client.get(link).status_code == 303
    return _csrf(client)


def _csrf(client: httpx.Client) -> str:
    found = re.search(r"[0-9a-f]{64}", client.get("/").text)
    assert found, "the page carries its session's CSRF token"
    return found.group()


def _assert_refused(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    if response.headers["content-type"].startswith("application/json"):
        assert response.json()["code"] == code
    else:
        assert code in response.text
    for name in _HEADERS:
        assert name in response.headers
    assert "Traceback" not in response.text


def _routes(daemon: DaemonProcess) -> list[tuple[str, str]]:
    """Return every method and path there is: of the API from its document, and of the pages."""
    with daemon.http() as client:
        document = client.get("/schema/openapi.json").json()
    routes = [
        (method.upper(), path) for path, entry in document["paths"].items() for method in entry
    ]
    for route in page_router().routes:
        routes += [(str(method), route.path) for method in getattr(route, "methods", ())]
    filled = []
    for method, path in routes:
        plain = re.sub(r"\{action(:str)?\}", "cancel", path)
        plain = re.sub(r"\{part(:str)?\}", "queue", plain)
        plain = re.sub(r"\{name(:str)?\}", "a.txt", plain)
        plain = re.sub(r"\{[^}]*\}", "987", plain)
        filled.append((method, plain))
    return filled


def test_the_routes_are_all_seen(daemon: DaemonProcess) -> None:
    routes = _routes(daemon)
    unsafe = {route for route in routes if route[0] not in _SAFE}
    assert {
        ("PUT", "/api/v1/datasets"),
        ("POST", "/api/v1/jobs/987/cancel"),
        ("DELETE", "/api/v1/models/987"),
        ("POST", "/jobs/987/cancel"),
        ("POST", "/models/987/delete"),
    } <= unsafe
    assert ("GET", "/api/v1/jobs/987/adapter") in routes


def test_every_route_needs_a_login(daemon: DaemonProcess, stranger: httpx.Client) -> None:
    for method, path in [*_routes(daemon), ("GET", "/schema/openapi.json"), ("GET", "/nowhere")]:
        if path == "/login":
            continue  # the one page for everybody
        _assert_refused(stranger.request(method, path), 401, "DAEMON-ACCESS")
        wrong = {"authorization": "Bearer wrong"}
        _assert_refused(stranger.request(method, path, headers=wrong), 401, "DAEMON-ACCESS")
    for value in ("Basic x", "Bearer", f"bearer {daemon.address.token[:-1]}", "é"):
        refused = stranger.get(
            "/api/v1/jobs", headers=[(b"authorization", value.encode("latin-1"))]
        )
        _assert_refused(refused, 401, "DAEMON-ACCESS")
    ours = {"authorization": f"bearer {daemon.address.token}"}
    assert stranger.get("/api/v1/jobs", headers=ours).status_code == 200


def test_a_wrong_bearer_is_not_saved_by_a_session(browser: httpx.Client) -> None:
    refused = browser.get("/api/v1/jobs", headers={"authorization": "Bearer wrong"})
    _assert_refused(refused, 401, "DAEMON-ACCESS")


def test_every_unsafe_route_needs_the_sessions_own_csrf_token(
    daemon: DaemonProcess, browser: httpx.Client
) -> None:
    mine = _csrf(browser)
    with _client(daemon) as other:
        foreign = _log_in(daemon, other)
    assert foreign != mine
    assert _csrf(browser) == mine, "the token stays the same for a session"
    for method, path in _routes(daemon):
        if method in _SAFE or path in _ENDS_IT or path == "/login":
            continue
        for headers in ({}, {"x-csrf-token": ""}, {"x-csrf-token": foreign}, {"x-csrf": mine}):
            refused = browser.request(method, path, headers=headers)
            _assert_refused(refused, 403, "DAEMON-FORBIDDEN")
        passed = browser.request(method, path, headers={"x-csrf-token": mine})
        assert passed.status_code not in (401, 403), (method, path)


def test_other_hosts_and_other_sites_are_refused(
    daemon: DaemonProcess, browser: httpx.Client
) -> None:
    port = daemon.address.url.rsplit(":", 1)[1]
    token = {"authorization": f"Bearer {daemon.address.token}"}
    for path in ("/", "/api/v1/jobs", "/login?token=x", "/static/style.css", "/nowhere"):
        for host in ("evil.example", "127.0.0.1", f"127.0.0.1:{port}.evil.example", "127.0.0.1:1"):
            refused = browser.get(path, headers=token | {"host": host})
            _assert_refused(refused, 403, "DAEMON-FORBIDDEN")
        for origin in ("null", "http://evil.example", f"https://127.0.0.1:{port}", "http://[::1]"):
            refused = browser.get(path, headers=token | {"origin": origin})
            _assert_refused(refused, 403, "DAEMON-FORBIDDEN")
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        fine = browser.get(
            "/api/v1/jobs", headers=token | {"host": host, "origin": f"http://{host}"}
        )
        assert fine.status_code == 200


def test_a_link_works_once_and_gives_a_guarded_cookie(
    daemon: DaemonProcess, stranger: httpx.Client
) -> None:
    link = daemon.api("POST", "/login-links")["url"]
    first = stranger.get(link)
    assert (first.status_code, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"].casefold()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert stranger.get("/").status_code == 200
    stranger.cookies.clear()
    _assert_refused(stranger.get(link), 401, "DAEMON-ACCESS")
    assert stranger.get("/login").status_code == 200
    _assert_refused(stranger.get("/login?token=" + "a" * 5000), 401, "DAEMON-ACCESS")
    _assert_refused(stranger.get("/"), 401, "DAEMON-ACCESS")
    port = daemon.address.url.rsplit(":", 1)[1]
    for value in ("", "x", '"', "a" * 3000, f"slidepack_{port}"):
        stale = {"cookie": f"slidepack_{port}={value}"}
        _assert_refused(stranger.get("/", headers=stale), 401, "DAEMON-ACCESS")


def test_links_and_sessions_grow_old(tmp_path: Path) -> None:
    clock = SimpleNamespace(now=1000.0)
    database = open_stores(tmp_path).database
    access = Access(
        Sessions(database),
        Tokens(database),
        Passwords(Documents(database)),
        1234,
        clock=lambda: float(clock.now),
    )
    old, fresh = (access.new_link().split("token=")[1] for _ in range(2))
    clock.now += 24 * 3600 - 1
    session = access.redeem(fresh)
    clock.now += 2
    with pytest.raises(SlidepackError) as refusal:
        access.redeem(old)
    assert refusal.value.report.code == "DAEMON-ACCESS"
    headers = {b"cookie": f"other=1; {access.cookie_name}={session}".encode()}
    assert access.session_of(headers) == session
    clock.now += 30 * 24 * 3600
    assert access.session_of(headers) == ""


def test_every_answer_carries_the_security_headers(browser: httpx.Client) -> None:
    answers = {
        "/": 200,
        "/jobs/1": 200,
        "/static/style.css": 200,
        "/static/nowhere.css": 404,
        "/nowhere": 404,
        "/jobs/987": 404,
        "/jobs/abc": 404,
        "/parts/nothing": 400,
        "/api/v1/nowhere": 404,
        "/api/v1/jobs/987": 404,
        "/api/v1/jobs/99999999999999999999999": 404,
        "/api/v1/datasets/99999999999999999999999": 404,
        "/api/v1/jobs/1/adapter": 200,
        "/api/v1/models": 200,
        "/schema/openapi.json": 200,
    }
    for path, status in answers.items():
        response = browser.get(path)
        assert response.status_code == status, (path, response.text)
        for name in _HEADERS:
            assert name in response.headers, path
        assert "'unsafe" not in response.headers["content-security-policy"]
        assert "access-control-allow-origin" not in response.headers


def test_files_outside_static_are_out_of_reach(
    daemon: DaemonProcess, stranger: httpx.Client
) -> None:
    for path in (
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/\x00",
    ):
        request = stranger.build_request("GET", daemon.address.url)
        request.url = request.url.copy_with(raw_path=path.replace("\x00", "%00").encode())
        response = stranger.send(request)
        assert response.status_code in (401, 404, 400), path
        assert "create_app" not in response.text
        assert "root:" not in response.text
