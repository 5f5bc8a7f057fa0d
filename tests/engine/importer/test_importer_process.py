"""The importer as the daemon sees it: a process, a progress file, and a folder whole or absent."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from safetensors.numpy import load_file
from support.waiting import PATIENCE, wait_until

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.contract import (
    ImportFailed,
    ImportLine,
    ImportProgress,
    ImportRequest,
    ImportResult,
    decode_line,
    decode_request,
    encode_line,
)
from slidepack.engine.importer.fingerprint import content_hash, quick_stamp
from slidepack.engine.importer.staging import Staging, disk_error, require_space

MakeGguf = Callable[..., Path]


class Import:
    """One importer process over a folder of its own."""

    def __init__(self, root: Path, source: Path, kind: str = "gguf") -> None:
        self.target = root / "models" / "tiny"
        self.progress = root / "progress.jsonl"
        self.request = root / "request.json"
        values = {
            "kind": kind,
            "source": str(source),
            "target": str(self.target),
            "revision": "r1",
            "progress": str(self.progress),
        }
        self.request.write_text(json.dumps(values))

    def start(self, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "slidepack.engine.importer", str(self.request)],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )

    def run(self) -> tuple[int, str]:
        process = self.start()
        _, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, errors

    def lines(self) -> list[ImportLine]:
        return [decode_line(line) for line in self.progress.read_bytes().splitlines()]

    def left_behind(self) -> list[str]:
        folder = self.target.parent
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_gguf_becomes_a_folder(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    job = Import(tmp_path, tiny_gguf(tmp_path / "m.gguf", extra={"general.license": "mit"}))
    assert job.run() == (0, "")
    *progress, result = job.lines()
    assert isinstance(result, ImportResult)
    assert result.path == str(job.target)
    assert result.content_hash == content_hash(job.target)
    assert result.stamp == quick_stamp(job.target)
    assert result.architecture == "LlamaForCausalLM"
    tensors = load_file(job.target / "model.safetensors")
    assert result.params == sum(tensor.size for tensor in tensors.values())
    assert result.bytes == (job.target / "model.safetensors").stat().st_size
    assert (result.license, result.revision) == ("mit", "r1")
    stages = [line.stage for line in progress if isinstance(line, ImportProgress)]
    assert list(dict.fromkeys(stages)) == ["reading", "converting", "checking", "hashing"]
    assert len(stages) == len(progress)
    assert job.left_behind() == ["tiny"]


def test_a_folder_is_registered_where_it_is(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    first = Import(tmp_path, tiny_gguf(tmp_path / "m.gguf"))
    first.run()
    second = Import(tmp_path, first.target, kind="folder")
    assert second.run()[0] == 0
    one, two = (line for line in second.lines() if isinstance(line, ImportResult))
    assert one == two
    pickled = first.target / "pytorch_model.bin"
    (first.target / "model.safetensors").rename(pickled)
    code, _ = second.run()
    last = second.lines()[-1]
    assert code == 23
    assert isinstance(last, ImportFailed) and last.error.code == "MODEL-PICKLE"
    assert pickled.exists()


def test_a_cut_file_fails_with_its_code_and_leaves_nothing(
    tmp_path: Path, tiny_gguf: MakeGguf
) -> None:
    path = tiny_gguf(tmp_path / "m.gguf")
    os.truncate(path, path.stat().st_size - 1000)
    job = Import(tmp_path, path)
    assert job.run() == (24, "")
    last = job.lines()[-1]
    assert isinstance(last, ImportFailed) and last.error.code == "MODEL-BROKEN"
    assert job.left_behind() == []


def test_an_existing_target_is_never_touched(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    job = Import(tmp_path, tiny_gguf(tmp_path / "m.gguf"))
    job.target.mkdir(parents=True)
    (job.target / "mine").write_text("kept")
    assert job.run() == (41, "")
    assert job.left_behind() == ["tiny"]
    assert (job.target / "mine").read_text() == "kept"


def wait_for_conversion(job: Import, process: subprocess.Popen[str]) -> None:
    def begun() -> bool:
        assert process.poll() is None, "it ended before"
        text = job.progress.read_text() if job.progress.exists() else ""
        return text.count('"converting"') >= 2

    wait_until(begun, what="the conversion has begun")


def test_kill_leaves_no_model_and_the_next_import_clears_up(
    tmp_path: Path, smollm2_gguf: Path
) -> None:
    job = Import(tmp_path, smollm2_gguf)
    process = job.start()
    wait_for_conversion(job, process)
    live = Staging(job.target.with_name("tiny"))
    process.kill()
    process.communicate()
    assert not job.target.exists()
    assert job.left_behind() == [f".tiny.tmp-{process.pid}"]
    with live as folder:
        assert job.left_behind() == [folder.name]
    assert job.left_behind() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_removes_everything_and_says_so(
    tmp_path: Path, smollm2_gguf: Path, number: signal.Signals
) -> None:
    job = Import(tmp_path, smollm2_gguf)
    process = job.start()
    wait_for_conversion(job, process)
    asked = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert time.monotonic() - asked < 5
    assert (process.returncode, errors) == (29, "")
    last = job.lines()[-1]
    assert isinstance(last, ImportFailed) and last.error.code == "MODEL-IMPORT-STOPPED"
    assert job.left_behind() == []


def test_the_work_of_a_live_import_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "model"
    dead = tmp_path / ".model.tmp-1"
    dead.mkdir()
    (dead / "half").write_text("x")
    other = tmp_path / ".other.tmp-1"
    other.mkdir()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib\n"
            "from slidepack.engine.importer.staging import Staging\n"
            "with Staging(pathlib.Path(sys.argv[1])):\n"
            "    sys.stdout.write('in\\n'); sys.stdout.flush(); sys.stdin.read()",
            str(target),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "in\n"
    held = f".model.tmp-{holder.pid}"
    with Staging(target) as mine:
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {held, mine.name, other.name}
    holder.communicate("")
    assert {path.name for path in tmp_path.iterdir()} == {other.name}


def test_a_folder_nested_without_end_is_an_error_like_others(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "config.json").write_text("[" * 100_000)
    job = Import(tmp_path, folder, kind="folder")
    code, errors = job.run()
    assert code in (21, 24) and not errors
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    assert job.run() == (21, "")


def test_a_full_disk_has_its_code(tmp_path: Path) -> None:
    with pytest.raises(SlidepackError, match="DISK-FULL"):
        require_space(tmp_path, 1 << 62)
    require_space(tmp_path, 1)
    full = OSError(errno.ENOSPC, "No space left on device", "model.safetensors")
    assert disk_error(full).report.code == "DISK-FULL"
    assert "model.safetensors" in disk_error(full).report.why
    assert disk_error(PermissionError(errno.EACCES, "no", "x")).report.code == "DISK-UNWRITABLE"


def test_a_disk_that_fills_up_midway_leaves_nothing(tmp_path: Path, tiny_gguf: MakeGguf) -> None:
    """A file-size limit fails a write in the middle, as a full disk does."""
    job = Import(tmp_path, tiny_gguf(tmp_path / "m.gguf"))
    limited = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, resource, signal, sys\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
            "os.execv(sys.executable, [sys.executable, '-m', *sys.argv[1:]])",
            "slidepack.engine.importer",
            str(job.request),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (limited.returncode, limited.stderr) == (41, "")
    last = job.lines()[-1]
    assert isinstance(last, ImportFailed)
    assert "File too large" in last.error.why
    assert job.left_behind() == []


def test_a_second_committer_loses_cleanly(tmp_path: Path) -> None:
    stage = Staging(tmp_path / "model")
    with pytest.raises(SlidepackError, match="exists already"), stage as folder:
        (folder / "file").write_text("mine")
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "file").write_text("theirs")
        stage.commit()
    assert (tmp_path / "model" / "file").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"kind": "zip", "source": "a", "target": "/b", "progress": "/c"}',
        '{"kind": "gguf", "source": "a", "target": "b", "progress": "/c"}',
        '{"kind": "gguf", "source": "a", "target": "/", "progress": "/c"}',
        '{"kind": "folder", "source": "a\\u0000", "target": "", "progress": "/c"}',
    ],
)
def test_a_bad_request(tmp_path: Path, text: str) -> None:
    request = tmp_path / "request.json"
    request.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "slidepack.engine.importer", str(request)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 76
    assert done.stderr.startswith("DAEMON-REQUEST-INVALID: ")
    assert done.stderr.count("\n") == 1


def every_line() -> Iterator[ImportLine]:
    yield ImportProgress(done=1, total=2, stage="hashing")
    yield ImportResult(
        path="/m",
        content_hash="a",
        stamp="b",
        architecture="LlamaForCausalLM",
        params=1,
        bytes=4,
        license="",
        revision="",
    )
    yield ImportFailed(error=SlidepackError("MODEL-BROKEN", "x", why="y", fix="z").report)


def test_lines_survive_the_way_there_and_back() -> None:
    for line in every_line():
        encoded = encode_line(line)
        assert encoded.endswith(b"\n") and encoded.count(b"\n") == 1
        assert decode_line(encoded) == line
    assert decode_line(b'{"done":1,"total":2,"stage":"reading"}') == ImportProgress(
        done=1, total=2, stage="reading"
    )
    for bad in (b'{"done":1', b'{"ok":true}', b'{"done":1,"total":2,"stage":"reading","x":1}'):
        with pytest.raises(msgspec.DecodeError):
            decode_line(bad)
    request = ImportRequest(kind="hub", source="a/b", target="/t", progress="/p")
    assert decode_request(msgspec.json.encode(request)) == request
