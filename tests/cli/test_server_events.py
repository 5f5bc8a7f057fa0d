"""Server-sent events as commands read them: whatever a model says, wherever the network cuts."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.line_ends import TEXT

from slidepack.cli.client import DaemonClient
from slidepack.cli.server_events import events_of
from slidepack.daemon.instance import DaemonAddress, publish_address
from slidepack.daemon.paths import DataPaths
from slidepack.web.batches import message

SAID = [{"text": TEXT}, {"text": "é😀\r\n"}, {"text": ""}, {"text": "data: \n\nevent: x"}]


def _stream() -> bytes:
    return b"".join(
        message(event="token", data=json.dumps(one, ensure_ascii=False), event_id=number)
        for number, one in enumerate(SAID)
    )


def _read(chunks: list[bytes]) -> list[tuple[str, object]]:
    return [(name, json.loads(data)) for name, data in events_of(chunks)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_events_are_whole_wherever_they_are_cut(size: int) -> None:
    stream = _stream()
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert _read(chunks) == [("token", one) for one in SAID]


def test_lines_may_end_as_on_other_systems_and_events_may_have_no_name() -> None:
    stream = b': alive\r\n\r\nevent: a\r\nretry: 5\r\ndata: {"n": 1}\r\n\r\ndata: {"n": 2}\r\n\r\n'
    assert _read([stream]) == [("a", {"n": 1}), ("", {"n": 2})]


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(_stream())

    def log_message(self, *said: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_client_gets_what_was_said(url: str, tmp_path: Path) -> None:
    publish_address(DataPaths(tmp_path), DaemonAddress(url=url, token="t", pid=1))
    answers = DaemonClient(tmp_path).stream("/chat", {})
    assert list(answers) == [("token", one) for one in SAID]
