"""A reverse proxy on the same machine: strangers behind it do not lock out whoever sits here."""

from collections.abc import Iterator

import httpx
import pytest
from litestar.types import HTTPScope
from support.daemons import DaemonProcess
from support.waiting import PATIENCE

from slidepack.daemon.listening import Listening
from slidepack.web.proxies import is_proxied

_PASSWORD = "correct horse battery"
_NAME = "train.example.org"
_THROUGH = {"host": _NAME, "origin": f"https://{_NAME}"}


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    home = tmp_path_factory.mktemp("proxy") / "home"
    with DaemonProcess(home, allowed_hosts=_NAME) as process:
        process.api("PUT", "/password", json={"new": _PASSWORD})
        yield process


def _log_in(daemon: DaemonProcess, typed: str, **headers: str) -> httpx.Response:
    return httpx.post(
        f"{daemon.address.url}/login",
        data={"password": typed},
        headers=headers,
        trust_env=False,
        timeout=PATIENCE,
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "headers", [_THROUGH, {"x-forwarded-for": "203.0.113.9"}], ids=["name", "forwarded"]
)
def test_strangers_behind_a_proxy_wait_and_the_owner_at_the_machine_does_not(
    daemon: DaemonProcess, headers: dict[str, str]
) -> None:
    # The waits double: however slow the machine is, one of them is longer than its pace.
    for number in range(20):
        late = _log_in(daemon, f"guess number {number}", **headers)
        if late.status_code == 429:
            break
    assert late.status_code == 429
    assert 1 <= int(late.headers["retry-after"]) <= 30
    assert _log_in(daemon, "mistyped").status_code == 401, "looked at, for it did not wait"
    assert _log_in(daemon, _PASSWORD).status_code == 303
    # A link opens the page through the proxy too, whatever others try there.
    link = httpx.URL(daemon.api("POST", "/login-links")["url"])
    entered = httpx.get(link, headers=headers, trust_env=False, timeout=PATIENCE)
    assert entered.status_code == 303


@pytest.mark.parametrize(
    ("peer", "host", "header", "proxied"),
    [
        ("127.0.0.1", "train.example.org", "", True),
        ("127.0.0.1", "Train.Example.org:443", "", True),
        ("::1", "train.example.org", "", True),
        ("127.0.0.1", "127.0.0.1:7333", "", False),
        ("127.0.0.1", "localhost:7333", "", False),
        # Allowed for a tunnel to another port, so that it is no proxy of others.
        ("127.0.0.1", "localhost:8443", "", False),
        ("127.0.0.1", "[::1]:8443", "", False),
        # A stranger can name any host, but not keep a proxy from saying what it is.
        ("127.0.0.1", "127.0.0.1:7333", "x-forwarded-for", True),
        ("127.0.0.1", "localhost:7333", "forwarded", True),
        ("127.0.0.1", "localhost:7333", "x-forwarded", False),
        ("192.168.1.9", "train.example.org", "x-forwarded-for", False),
    ],
)
def test_who_comes_through_a_proxy(peer: str, host: str, header: str, proxied: bool) -> None:
    listening = Listening(
        plain=("127.0.0.1",),
        extra=frozenset({"train.example.org", "localhost:8443", "[::1]:8443"}),
    )
    headers = [(b"host", host.encode()), *([(header.encode(), b"1")] if header else [])]
    scope: HTTPScope = {"client": (peer, 50_000), "headers": headers}  # type: ignore[typeddict-item]
    assert is_proxied(scope, listening) is proxied
