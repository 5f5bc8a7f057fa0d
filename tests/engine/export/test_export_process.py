"""The exporter as a process: its lines, its exit codes, and what is left when it is stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.exports import random_adapter, save_exportable

from slidepack.engine.contract.errors import CATALOGUE
from slidepack.engine.export.contract import (
    ExportFailed,
    ExportLine,
    ExportProgress,
    ExportRequest,
    ExportResult,
    decode_line,
    decode_request,
    encode_line,
)


def _request(tmp_path: Path, kind: Any = "gguf", **changes: Any) -> Path:
    base = tmp_path / "base"
    if not base.exists():
        save_exportable(base, "llama")
        random_adapter(base, tmp_path / "result")
    values: dict[str, Any] = {
        "result": str(tmp_path / "result"),
        "base": str(base),
        "target": str(tmp_path / "place" / "out"),
        "format": kind,
    }
    path = tmp_path / "request.json"
    path.write_bytes(msgspec.json.encode(ExportRequest(**(values | changes))))
    return path


def _start(request: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "slidepack.engine.export", str(request)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _run(request: Path) -> tuple[int, list[ExportLine]]:
    with _start(request) as process:
        out, _ = process.communicate()
    return process.returncode, [decode_line(line) for line in out.splitlines()]


def _until(process: subprocess.Popen[bytes], stage: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        read = decode_line(line)
        if isinstance(read, ExportProgress) and read.stage == stage:
            return
    pytest.fail(f"it never came to {stage}")


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.full
def test_an_export_says_how_far_it_is_and_what_it_made(tmp_path: Path) -> None:
    code, lines = _run(_request(tmp_path, name="../../x"))
    *progress, last = lines
    assert code == 0 and isinstance(last, ExportResult)
    assert last.path == str(tmp_path / "place" / "out")
    assert list(last.files) == ["x-f16.gguf"]
    size = (tmp_path / "place" / "out" / "x-f16.gguf").stat().st_size
    assert last.files["x-f16.gguf"] == size
    stages = [line.stage for line in progress if isinstance(line, ExportProgress)]
    assert len(stages) == len(progress)
    assert list(dict.fromkeys(stages)) == ["reading", "writing", "checking"]
    assert last.verification is not None and last.verification.holds
    # Nothing is outside of the target's folder, and nothing hidden is beside it.
    assert _names(tmp_path) == ["base", "place", "request.json", "result"]
    assert _names(tmp_path / "place") == ["out"]


@pytest.mark.parametrize(
    ("number", "stage"), [(signal.SIGINT, "checking"), (signal.SIGTERM, "writing")]
)
def test_a_stopped_export_leaves_nothing(
    tmp_path: Path, number: signal.Signals, stage: str
) -> None:
    with _start(_request(tmp_path)) as process:
        _until(process, stage)
        process.send_signal(number)
        out, _ = process.communicate()
    assert process.returncode == CATALOGUE["RUN-INTERRUPTED"].exit_code
    last = decode_line(out.splitlines()[-1])
    assert isinstance(last, ExportFailed) and last.error.code == "RUN-INTERRUPTED"
    assert _names(tmp_path / "place") == []


@pytest.mark.full
def test_a_killed_export_is_never_seen_and_cleaned_up_by_the_next(tmp_path: Path) -> None:
    request = _request(tmp_path)
    with _start(request) as process:
        _until(process, "checking")
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    (hidden,) = _names(tmp_path / "place")
    assert hidden.startswith(".out.export-")
    code, _ = _run(request)
    assert code == 0
    assert _names(tmp_path / "place") == ["out"]


def test_an_export_nobody_listens_to_leaves_nothing(tmp_path: Path) -> None:
    with _start(_request(tmp_path)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        process.communicate()
    assert process.returncode == CATALOGUE["DISK-UNWRITABLE"].exit_code
    assert _names(tmp_path / "place") == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"base": ""}, "MODEL-NOT-FOUND"),
        ({"target": "/proc/out"}, "DISK-UNWRITABLE"),
    ],
)
def test_refusals_have_a_code_and_its_exit_code(
    tmp_path: Path, changes: dict[str, str], code: str
) -> None:
    status, lines = _run(_request(tmp_path, **changes))
    last = lines[-1]
    assert isinstance(last, ExportFailed) and last.error.code == code
    assert status == CATALOGUE[code].exit_code


def test_a_request_that_is_none_is_refused_among_what_others_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "request.json").write_text('{"result": "relative"}')
    noise = "import atexit, os\natexit.register(os.write, 1, b'a library speaks\\n')\n"
    (tmp_path / "sitecustomize.py").write_text(noise)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    status, (last,) = _run(tmp_path / "request.json")
    assert isinstance(last, ExportFailed) and last.error.code == "DAEMON-REQUEST-INVALID"
    assert status == CATALOGUE["DAEMON-REQUEST-INVALID"].exit_code


@pytest.mark.parametrize(
    "changes",
    [
        {"result": "relative"},
        {"result": ""},
        {"target": "/"},
        {"target": "relative"},
        {"base": "a\0b"},
        {"format": "onnx"},
        {"quant": "q4_0"},
        {"adapter_only": True, "format": "merged"},
        {"unknown": 1},
    ],
)
def test_what_a_request_may_not_say(changes: dict[str, Any]) -> None:
    values = {"result": "/r", "target": "/t", "format": "gguf"}
    decode_request(json.dumps(values).encode())
    with pytest.raises(msgspec.ValidationError):
        decode_request(json.dumps(values | changes).encode())


def test_lines_come_back_as_they_were() -> None:
    lines: list[ExportLine] = [
        ExportProgress(stage="writing", done=1, total=2),
        ExportResult(path="/t", files={"a": 1}, format="peft", verification=None, notes=["n"]),
    ]
    assert [decode_line(encode_line(line)) for line in lines] == lines
