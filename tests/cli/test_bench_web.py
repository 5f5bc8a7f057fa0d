"""`slidepack bench web`: what it measures of a real daemon, and what it would notice."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import psutil
import pytest

from slidepack.cli.bench_web_listeners import listen
from slidepack.cli.bench_web_requests import rows_from
from slidepack.cli.main import run

SMALL = (
    *("--jobs", "30", "--points", "500", "--requests", "4", "--clients", "6", "--seconds", "1"),
    *("--upload-gigabytes", "0.04", "--rounds", "1"),
)
"""More than one piece is sent."""
BARS = {
    "Home, p95": 30.0,
    "series of 500 steps, median": 100.0,
    "CPU with 6 listeners": 30.0,
    "RSS with 6 listeners": 200.0,
    "6 listeners: who missed any": 0.0,
    "upload of 0.04 GB: RSS above before": 50.0,
}
BROWSER_BARS = {
    "Home: first contentful paint": 300.0,
    "Home: transferred": 150.0,
    "pause of a job, shown": 150.0,
    "pause of the queue, shown": 150.0,
}


@contextmanager
def events(skipped: dict[int, int]) -> Iterator[str]:
    """Serve steps without end; of the streams, numbered as they come, some leave one step out."""
    streams, over = iter(range(1000)), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            left_out = skipped.get(next(streams))
            self.send_response(200)
            self.end_headers()
            step = 0
            try:
                while not over.wait(0.02):
                    step += 1
                    if step != left_out:
                        line = f'event: progress\ndata: {{"job":1,"step":{step}}}\n\n'
                        self.wfile.write(line.encode())
            except ConnectionError:
                return

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


@pytest.mark.full
def test_it_measures_a_daemon_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "web", *SMALL, "--json"]) == 0
    result = msgspec.json.decode(capsys.readouterr().out)
    figures = {figure["name"]: figure for figure in result["figures"]}
    bars = {name: one["bar"] for name, one in figures.items() if one["bar"] is not None}
    if shutil.which("chromium") is None:
        assert bars == BARS
        assert "Chromium" in result["notes"][-1]
    else:
        assert bars == BARS | BROWSER_BARS
        assert figures["Home: transferred"]["value"] > 10.0
    for figure in figures.values():
        passed = None if figure["bar"] is None else figure["value"] <= figure["bar"]
        assert figure["passed"] is passed
    assert figures["6 listeners: steps told"]["value"] >= 5
    assert figures["6 listeners: who missed any"]["value"] == 0
    assert figures["upload of 0.04 GB: rate"]["value"] > 0.0


@pytest.mark.full
def test_a_listener_that_misses_a_step_is_noticed() -> None:
    for skipped, short in (({}, 0), ({0: 30, 2: 31}, 2)):
        with events(skipped) as url:
            heard = listen(url, "token", psutil.Process(), clients=4, seconds=1.5)
        assert heard.listeners_short == short
        assert heard.events > 40


def test_what_is_sent_is_rows_wherever_it_is_cut() -> None:
    whole = b"".join(rows_from(0, 3_000_000))
    cut = [b"".join(rows_from(begin, 1_000_000)) for begin in range(0, 3_000_000, 1_000_000)]
    assert b"".join(cut) == whole
    *rows, _ = whole.splitlines()
    assert {tuple(msgspec.json.decode(row)) for row in rows} == {("prompt", "completion")}


def test_an_upload_without_room_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "web", "--upload-gigabytes", "1e9", "--json"]) != 0
    assert msgspec.json.decode(capsys.readouterr().out)["error"]["code"] == "DISK-FULL"
