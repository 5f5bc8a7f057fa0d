"""`slidepack jobs rm`, against whatever a daemon may answer."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from slidepack.cli.main import run
from slidepack.engine.contract.errors import CATALOGUE, ErrorReport

_REFUSAL = ErrorReport(
    code="RUN-STATE", what="Job 4 cannot be deleted.", why="it is running", fix="Cancel it first."
)

_WANTED = {"format": "gguf", "quant": "q8_0", "adapter_only": False}
_REMOVED = {"removed": 3, "exports": [{"id": 8, "bytes": 1_500_000, "wanted": _WANTED}]}


class _Jobs(BaseHTTPRequestHandler):
    """Has job 3, which can be deleted, and job 4, which runs."""

    def do_DELETE(self) -> None:
        known = self.headers["authorization"] == "Bearer secret"
        if known and self.path == "/api/v1/jobs/3":
            body = msgspec.json.encode(_REMOVED)
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            body = msgspec.json.encode(_REFUSAL)
            self.send_response(409)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output to what the command says."""


@pytest.fixture(autouse=True)
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Jobs)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = {"url": f"http://127.0.0.1:{server.server_port}", "token": "secret", "pid": 1}
    (tmp_path / "daemon.json").write_text(json.dumps(address))
    monkeypatch.setenv("SLIDEPACK_HOME", str(tmp_path))
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_deleted_job_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs", "rm", "3"]) == 0
    assert capsys.readouterr().out == (
        "Job 3 is deleted.\nIts export 8 stays (gguf q8_0, 1.5 MB): `slidepack exports rm 8`.\n"
    )
    assert run(["jobs", "rm", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == _REMOVED


def test_a_refusal_keeps_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    status = CATALOGUE["RUN-STATE"].exit_code
    assert run(["jobs", "rm", "4"]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "RUN-STATE" in captured.err
    assert "it is running" in captured.err
    assert run(["jobs", "rm", "4", "--json"]) == status
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "RUN-STATE"


@pytest.mark.parametrize("wrong", [[], ["many"], ["3", "4"]])
def test_it_takes_one_job(wrong: list[str]) -> None:
    assert run(["jobs", "rm", *wrong]) == 2
