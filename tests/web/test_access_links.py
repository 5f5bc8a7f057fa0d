"""Login links: whatever others ask for, a link that is valid logs its browser in."""

from collections.abc import Iterator

import httpx
import pytest
from support.daemons import DaemonProcess
from support.waiting import PATIENCE

_PASSWORD = "correct horse battery"
_PICTURE = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
_FRAME = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
_PAGE = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("links") / "home") as process:
        process.api("PUT", "/password", json={"new": _PASSWORD})
        yield process


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=daemon.address.url, trust_env=False, timeout=PATIENCE) as client:
        yield client


@pytest.mark.parametrize("headers", [_PICTURE, _FRAME, {}], ids=["picture", "frame", "plain"])
def test_made_up_links_keep_nobody_from_a_valid_one_nor_from_the_password(
    daemon: DaemonProcess, client: httpx.Client, headers: dict[str, str]
) -> None:
    seen = {client.get("/login?token=x", headers=headers).status_code for _ in range(30)}
    assert seen == {403 if headers else 401}
    typed = client.post("/login", data={"password": _PASSWORD})
    assert typed.status_code == 303
    client.cookies.clear()
    link = daemon.api("POST", "/login-links")["url"]
    assert client.get(link, headers=_PAGE).status_code == 303


@pytest.mark.parametrize("headers", [_PICTURE, _FRAME], ids=["picture", "frame"])
def test_a_link_inside_another_page_is_refused_and_not_used_up(
    daemon: DaemonProcess, client: httpx.Client, headers: dict[str, str]
) -> None:
    link = daemon.api("POST", "/login-links")["url"]
    refused = client.get(link, headers=headers)
    assert refused.status_code == 403
    assert "DAEMON-FORBIDDEN" in refused.text
    assert "set-cookie" not in refused.headers
    assert client.get(link, headers=_PAGE).status_code == 303
