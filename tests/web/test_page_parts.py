"""Parts of pages whose job, sweep or model is gone: an open page goes to the list it was in."""

import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm


@pytest.mark.parametrize(
    ("part", "to"),
    [
        ("/jobs/987/parts/status", "/queue"),
        ("/jobs/987/parts/exports", "/queue"),
        ("/sweeps/987/parts/top", "/sweeps"),
        ("/sweeps/987/parts/rows", "/sweeps"),
        ("/sweeps/987/parts/plots", "/sweeps"),
        ("/models/none/parts/needs", "/models"),
    ],
)
def test_of_what_is_gone(part: str, to: str, served_farm: Farm) -> None:
    with served_farm.daemon.http() as client:
        answer = client.get(part)
    assert (answer.status_code, answer.headers.get("hx-redirect")) == (200, to)


@pytest.mark.parametrize("path", ["/jobs/987", "/sweeps/987", "/models/none"])
def test_a_whole_page_of_what_is_gone_says_so(path: str, served_farm: Farm) -> None:
    with served_farm.daemon.http() as client:
        answer = client.get(path)
    assert answer.status_code == 404
    assert "NOT-FOUND" in answer.text


@pytest.mark.parametrize("part", ["/jobs/987/parts/none", "/sweeps/987/parts/none"])
def test_a_part_that_no_page_has(part: str, daemon: DaemonProcess) -> None:
    with daemon.http() as client:
        assert client.get(part).status_code == 400
