"""The doctor's page and its API, of a real daemon on this machine."""

import getpass
import socket
from collections.abc import Iterator

import pytest
from support.daemons import DaemonProcess
from support.waiting import wait_until

# The doctor starts a process that imports torch, and asks it everything.
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon whose doctor has looked, because somebody opened the page."""
    with DaemonProcess(tmp_path_factory.mktemp("doctor") / "home", device="cpu") as daemon:
        assert daemon.api("GET", "/doctor")["last"] is None
        with daemon.http() as client:
            first = client.get("/doctor")
        assert first.status_code == 200
        assert "OK" in first.text, "what a glance shows is there at once"
        wait_until(
            lambda: daemon.api("GET", "/doctor")["last"], seconds=120, what="the doctor is done"
        )
        yield daemon


def test_every_finding_is_on_the_page_with_what_to_do(examined: DaemonProcess) -> None:
    found = examined.api("GET", "/doctor")["last"]["findings"]
    with examined.http() as client:
        text = client.get("/doctor").text
    assert found
    titles = {one["title"] for one in found}
    assert any("Disk speed" in title or "disk" in title for title in titles)
    for one in found:
        assert one["title"].split("'")[0] in text
    assert text.count('class="found ') == len(found)
    assert "MB/s" in text
    assert "Python 3." in text
    assert "The daemon&#39;s log" in text or "The daemon's log" in text


def test_the_report_is_text_that_may_be_shown_to_anybody(examined: DaemonProcess) -> None:
    with examined.http() as client:
        answer = client.get("/api/v1/doctor/report")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "Slidepack: " in answer.text
    assert "[ok]" in answer.text
    assert str(examined.home) not in answer.text
    if getpass.getuser() != "root":
        assert getpass.getuser() not in answer.text
    if len(socket.gethostname()) > 5:
        assert socket.gethostname() not in answer.text
    assert examined.address.token not in answer.text


def test_it_looks_again_when_asked(examined: DaemonProcess) -> None:
    before = examined.api("GET", "/doctor")["last"]["at"]
    assert examined.api("POST", "/doctor")["running"]
    wait_until(
        lambda: examined.api("GET", "/doctor")["last"]["at"] > before,
        what="it has looked again",
    )


def test_only_what_is_safe_can_be_mended_from_the_page(examined: DaemonProcess) -> None:
    with examined.http() as client:
        assert client.post("/doctor/fix/reboot").status_code == 400
        # Here no service manager answers: that is told, and nothing has happened.
        answer = client.post("/doctor/fix/enable-service")
        assert answer.status_code in (303, 500, 503)
        if answer.status_code != 303:
            assert "DAEMON-" in answer.text


def test_what_takes_the_room_is_shown_with_where_it_can_be_deleted(
    examined: DaemonProcess,
) -> None:
    folder = examined.home / "models" / "big"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"x" * (3 << 20))
    (examined.home / "exports" / "again").hardlink_to(folder / "weights")
    with examined.http() as client:
        text = client.get("/doctor/parts/room").text
    # The same file under two names takes its room once.
    assert text.count("3.0 MiB") == 1
    assert text.index("Models") < text.index("Datasets"), "the biggest comes first"
    assert 'href="/models"' in text
