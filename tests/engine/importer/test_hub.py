"""Fetching from a hub, against a small hub on this machine."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.waiting import PATIENCE, wait_until

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.contract import ImportFailed, ImportResult, decode_line
from slidepack.engine.importer.folder import check_folder
from slidepack.engine.importer.gguf_file import GgufFile
from slidepack.engine.importer.gguf_model import read_model_shape, write_model
from slidepack.engine.importer.gguf_tokenizer import write_tokenizer
from slidepack.engine.importer.hub import download

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "hf_thisMustNeverBeShown"


class Hub(ThreadingHTTPServer):
    """Serves one model, `owner/tiny`, and the hub's way of saying no for others."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.stall = threading.Event()
        self.stalling = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def downloaded(self) -> set[str]:
        return {path.rsplit("/", 1)[1] for path in self.asked if "/resolve/" in path}


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        if body:
            self.server.asked.append(path)
        if "owner/gated" in path:
            self._send(403, b"{}", body, {"X-Error-Code": "GatedRepo"})
        elif "owner/broken" in path:
            self._send(500, b"{}", body, {})
        elif "owner/tiny" not in path:
            self._send(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        elif "/revision/nowhere" in path:
            self._send(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
        elif "/tree/" in path:
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": sha1(data).hexdigest()}
                for name, data in self.server.files.items()
            ]
            self._send(200, json.dumps(entries).encode(), body, {})
        elif path.startswith("/api/models/"):
            files = self.server.files.items()
            info = {
                "id": "owner/tiny",
                "sha": COMMIT,
                "cardData": {"license": "mit"},
                "siblings": [{"rfilename": name, "size": len(data)} for name, data in files],
            }
            self._send(200, json.dumps(info).encode(), body, {})
        else:
            name = path.split(f"/resolve/{COMMIT}/")[1]
            data = self.server.files[name]
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{sha1(data).hexdigest()}"'}
            self._send(200, data, body, headers, stall=name.endswith(".safetensors"))

    def _send(
        self, status: int, data: bytes, body: bool, headers: dict[str, str], stall: bool = False
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not body:
            return
        if stall and self.server.stalling:
            self.wfile.write(data[:1000])
            self.wfile.flush()
            self.server.stall.wait()
            return
        self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path, tiny_gguf: Callable[..., Path]) -> Iterator[Hub]:
    folder = tmp_path / "source"
    folder.mkdir()
    gguf = GgufFile(tiny_gguf(tmp_path / "m.gguf"))
    shape = read_model_shape(gguf)
    write_tokenizer(gguf, folder, shape.vocab)
    write_model(gguf, shape, folder, lambda _: None)
    server = Hub()
    server.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    server.files |= {
        "README.md": b"# Tiny",
        "pytorch_model.bin": b"\x80\x02 a pickle",
        "consolidated.safetensors": b"a second copy",
        "onnx/config.json": b"{}",
        "original/model.safetensors": b"another copy",
        "modeling_tiny.py": b"raise SystemExit",
    }
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.stall.set()
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(hub: Hub, target: Path, repo: str = "owner/tiny", revision: str = "") -> object:
    target.mkdir(exist_ok=True)
    return download(repo, revision, target, lambda *_: None, endpoint=hub.address)


def test_a_model_arrives_without_its_pickles_and_copies(hub: Hub, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    shown: list[tuple[int, int, str]] = []
    snapshot = download(
        "owner/tiny", "main", target, lambda *seen: shown.append(seen), endpoint=hub.address
    )
    assert (snapshot.revision, snapshot.license) == (COMMIT, "mit")
    names = {path.name for path in target.iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert hub.downloaded() == names
    assert (target / "model.safetensors").read_bytes() == hub.files["model.safetensors"]
    check_folder(target)
    total = sum(len(hub.files[name]) for name in names)
    assert shown[-1] == (total, total, "downloading")


@pytest.mark.parametrize(
    ("repo", "revision", "code", "word"),
    [
        ("owner/absent", "", "MODEL-NOT-FOUND", "owner/absent"),
        ("owner/tiny", "nowhere", "MODEL-NOT-FOUND", "nowhere"),
        ("not a hub id", "", "MODEL-NOT-FOUND", "not a hub id"),
        ("owner/gated", "", "MODEL-UNREACHABLE", "gated"),
        ("owner/broken", "", "MODEL-UNREACHABLE", "500"),
    ],
)
def test_refusals(hub: Hub, tmp_path: Path, repo: str, revision: str, code: str, word: str) -> None:
    with pytest.raises(SlidepackError) as caught:
        fetch(hub, tmp_path / "target", repo, revision)
    assert caught.value.report.code == code
    assert word in caught.value.report.why


def test_a_hub_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SlidepackError, match="MODEL-UNREACHABLE"):
        download("a/b", "", tmp_path, lambda *_: None, endpoint="http://127.0.0.1:9")


def test_only_pickles_are_refused_before_anything_is_fetched(hub: Hub, tmp_path: Path) -> None:
    del hub.files["model.safetensors"], hub.files["consolidated.safetensors"]
    del hub.files["original/model.safetensors"]
    with pytest.raises(SlidepackError, match="MODEL-PICKLE"):
        fetch(hub, tmp_path / "target")
    del hub.files["pytorch_model.bin"]
    with pytest.raises(SlidepackError, match="MODEL-NOT-A-MODEL"):
        fetch(hub, tmp_path / "target")
    assert hub.downloaded() == set()


def test_an_unsupported_model_is_refused_before_its_weights(hub: Hub, tmp_path: Path) -> None:
    config = json.loads(hub.files["config.json"]) | {"architectures": ["GPT2LMHeadModel"]}
    hub.files["config.json"] = json.dumps(config).encode()
    with pytest.raises(SlidepackError, match="MODEL-UNSUPPORTED"):
        fetch(hub, tmp_path / "target")
    assert "model.safetensors" not in hub.downloaded()


def start(hub: Hub, root: Path, repo: str) -> subprocess.Popen[str]:
    request = root / "request.json"
    values = {"kind": "hub", "source": repo, "target": str(root / "models" / repo.split("/")[1])}
    request.write_text(json.dumps(values | {"progress": str(root / "progress.jsonl")}))
    return subprocess.Popen(
        [sys.executable, "-m", "slidepack.engine.importer", str(request)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {"HF_ENDPOINT": hub.address, "HF_TOKEN": SECRET, "HF_HOME": str(root / "hf")},
    )


@pytest.mark.full
def test_the_process_fetches_and_never_shows_the_token(hub: Hub, tmp_path: Path) -> None:
    for repo, code in (("owner/tiny", 0), ("owner/gated", 26), ("owner/absent", 20)):
        process = start(hub, tmp_path, repo)
        out, errors = process.communicate(timeout=PATIENCE)
        lines = (tmp_path / "progress.jsonl").read_text()
        assert process.returncode == code, lines
        assert SECRET not in out + errors + lines
        last = decode_line(lines.splitlines()[-1].encode())
        if code:
            assert isinstance(last, ImportFailed)
        else:
            assert isinstance(last, ImportResult)
            assert (last.revision, last.license) == (COMMIT, "mit")


def test_a_stop_does_not_wait_for_the_download(hub: Hub, tmp_path: Path) -> None:
    hub.stalling = True
    process = start(hub, tmp_path, "owner/tiny")
    wait_until(lambda: "model.safetensors" in hub.downloaded(), what="the download has begun")
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    # The rest of the file never comes.
    process.communicate(timeout=PATIENCE)
    assert time.monotonic() - asked < 5
    assert process.returncode == 29
    assert list((tmp_path / "models").iterdir()) == []
