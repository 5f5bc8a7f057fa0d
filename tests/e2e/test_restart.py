"""The daemon dies in the middle of a run, and the open page goes on by itself."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from e2e.browsing import OpenVisitor, chart_points
from playwright.sync_api import expect
from support.daemons import DaemonProcess
from support.held import held
from support.tiny import chat_rows, write_jsonl
from support.waiting import wait_until

STEPS = 800
_OUTAGE = (
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED_ENCODING",
    r"\[object Event\]",
    "htmx:afterRequest",
    "htmx:sendError",
    "ERR_CONNECTION_RESET",
    "ERR_EMPTY_RESPONSE",
)
"""What Chromium and htmx write when a server is gone."""


@pytest.fixture
def fixed_daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon that comes back on the same port."""
    # Below those that the kernel gives out: nobody else is given it while the daemon is away.
    with socket.socket() as free:
        for port in random.sample(range(10_000, 32_000), 100):
            with contextlib.suppress(OSError):
                free.bind(("127.0.0.1", port))
                break
    daemon = DaemonProcess(tmp_path / "home", port=str(port))
    try:
        yield daemon.start()
    finally:
        daemon.clean_up()


def test_open_page_reconnects_and_its_chart_has_no_gap(
    fixed_daemon: DaemonProcess, open_visitor: OpenVisitor, tiny_model: Path, tmp_path: Path
) -> None:
    daemon = fixed_daemon
    job = daemon.api(
        "POST",
        "/jobs",
        json={
            "model": daemon.add_model(tiny_model),
            "dataset": daemon.upload(write_jsonl(tmp_path / "words.jsonl", chat_rows(40))),
            "rank": 4,
            "batch_size": 4,
            "max_seq_len": 128,
            "steps": STEPS,
        },
    )
    visitor = open_visitor(daemon, allowed=_OUTAGE)
    page = visitor.go(f"/jobs/{job['id']}")
    indicator = page.locator("#live")
    expect(indicator).to_have_text("Live")
    wait_until(lambda: daemon.job(job["id"])["step"] >= 10, what="it trains")
    # Without a daemon it would go on to its end, and that would be the end of the page's stream.
    with held(psutil.Process(daemon.attempts(job["id"])[-1]["pid"])):
        wait_until(lambda: chart_points(page) >= 10, what="the chart has ten points")
        daemon.kill()
        assert chart_points(page) < STEPS
        expect(indicator).to_have_text("Reconnecting…")
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("alert")).to_contain_text("DAEMON-NOT-RUNNING")
        daemon.start()
        expect(indicator).to_have_text("Live")
    expect(page.locator("#job-state")).to_have_text("completed")
    stored = daemon.api("GET", f"/jobs/{job['id']}/chart")
    assert [row["step"] for row in stored["progress"]] == list(range(1, STEPS + 1))
    # Points are kept by step: as many as there are steps, from the first to the last, is each once.
    chart = page.locator("#chart")
    expect(chart).to_have_attribute("data-points", str(STEPS))
    expect(chart).to_have_attribute("data-held", str(len(stored["evaluations"])))
    now, held_out = stored["progress"][-1]["loss"], stored["evaluations"][-1]["loss"]
    expect(chart).to_have_accessible_name(
        f"Training loss of steps 1 to {STEPS}, now {now:.3f}; held-out loss {held_out:.3f}."
    )
    assert len(daemon.attempts(job["id"])) == 1, "the same worker went on"
