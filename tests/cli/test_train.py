"""`slidepack train`: trains without a daemon, goes on after Ctrl-C, and refuses with codes."""

import codecs
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.held import held
from support.runs import MACHINE
from support.tiny import chat_rows, write_jsonl
from support.waiting import PATIENCE, wait_until

from slidepack.cli.main import run
from slidepack.cli.train import _base, _read
from slidepack.cli.train import _spec as _job_spec
from slidepack.engine.contract.errors import CATALOGUE
from slidepack.engine.contract.events import Evaluated, Started, decode_event
from slidepack.engine.contract.runfolder import RunFolder, RunIdentity
from slidepack.engine.memory import plan_run
from slidepack.engine.shape import read_shape

_SCRIPT = Path(sys.executable).with_name("slidepack")
_STEPS = 240
_FULL = {"method": "full", "steps": _STEPS, "checkpoint_every_steps": 5, "lr": 1e-3}


def _toml(path: Path, values: dict[str, object]) -> Path:
    """Write a training file; JSON's numbers, texts and lists are TOML too."""
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return path


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> Path:
    """A folder with a model, 30 rows, and one that is no row."""
    (tmp_path / "model").symlink_to(tiny_model)
    write_jsonl(tmp_path / "rows.jsonl", [*chat_rows(30), {"messages": []}])
    return tmp_path


def _spec(project: Path, **changes: object) -> Path:
    values: dict[str, object] = {
        "model": "model",
        "data": "rows.jsonl",
        "out": "runs/first",
        "max_seq_len": 128,
    }
    return _toml(project / "spec.toml", values | changes)


def _start(spec: Path, *options: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [_SCRIPT, "train", str(spec), *options],
        # Paths are beside the file, wherever the command runs.
        cwd="/",
        env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "80"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell that runs the tests in its background makes its children deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _attempt(project: Path, number: int) -> RunFolder:
    return RunFolder(project / "runs" / "first" / f"attempt-{number:04d}")


def _steps(folder: RunFolder) -> list[int]:
    return [
        event["step"]
        for event in map(json.loads, folder.events.read_bytes().splitlines())
        if event["type"] == "progress"
    ]


def _started(folder: RunFolder) -> Started:
    events = map(decode_event, folder.events.read_bytes().splitlines())
    (started,) = (event for event in events if isinstance(event, Started))
    return started


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a training file that is refused, in this process; return the error."""

    def call(spec: Path, code: str) -> Any:
        capsys.readouterr()
        status = run(["train", str(spec), "--json"])
        captured = capsys.readouterr()
        error = json.loads(captured.out)["error"]
        assert error["code"] == code, error
        assert status == CATALOGUE[code].exit_code
        assert captured.err.splitlines()[-1].startswith(f"{code}: ")
        assert error["fix"]
        return error

    return call


@pytest.mark.full
def test_after_ctrl_c_the_same_command_goes_on_to_the_end(
    project: Path, refused: Callable[..., Any]
) -> None:
    spec = _spec(project, **_FULL)
    process = _start(spec)
    first = _attempt(project, 1)
    wait_until(first.list_checkpoints, what="a checkpoint is there")
    with held(psutil.Process(_started(first).pid)):
        # A second run in the same folder would be in the way of the first.
        assert "train.lock" in refused(spec, "RUN-FOLDER-BUSY")["why"]
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err + first.log.read_text()
    (line,) = err.splitlines()
    assert line.startswith("RUN-INTERRUPTED: ")
    assert "1 of 31 rows of rows.jsonl are left out." in out
    assert "The whole model trains on the CPU, in fp32" in out, "the plan is printed"
    assert "Training on cpu" in out
    assert f"step 5/{_STEPS}  loss " in out
    reached = _steps(first)[-1]
    assert reached < _STEPS
    assert first.list_checkpoints()[0].name == f"step-{reached:08d}"

    out, err = _start(spec, "--json").communicate(timeout=PATIENCE)
    second = _attempt(project, 2)
    assert out.encode() == second.events.read_bytes(), "events, and nothing else"
    assert err.splitlines() == [
        "1 of 31 rows of rows.jsonl are left out.",
        second.read_plan().reason,
        f"The result is in {second.result}.",
    ]
    assert _steps(second) == list(range(reached + 1, _STEPS + 1))
    assert (second.result / "model" / "model.safetensors").exists()
    assert second.read_plan() == first.read_plan()

    assert str(second.result) in refused(spec, "RUN-SPEC-INVALID")["why"]
    for change in ({"lr": 2e-3}, {"too_long": "cut"}):
        changed = _spec(project, **(_FULL | change))
        assert "another run" in refused(changed, "RUN-SPEC-INVALID")["what"]
    write_jsonl(project / "rows.jsonl", chat_rows(29))
    assert "another run" in refused(_spec(project, **_FULL), "RUN-SPEC-INVALID")["what"]
    assert not _attempt(project, 3).root.exists()


@pytest.mark.full
def test_an_adapter_measured_on_rows_of_their_own(project: Path) -> None:
    write_jsonl(project / "other.jsonl", chat_rows(12))
    spec = _spec(project, steps=4, rank=4, held_out="other.jsonl")
    process = _start(spec)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    folder = _attempt(project, 1)
    started = _started(folder)
    assert (started.train_rows, started.eval_rows) == (30, 12)
    assert "held-out loss after step 4: " in out
    assert f"The result is in {folder.result}." in out
    assert (folder.result / "adapter" / "adapter_model.safetensors").exists()


@pytest.mark.full
def test_a_run_that_fails_keeps_the_workers_code(project: Path) -> None:
    # Too long for the model's positions, every one.
    write_jsonl(project / "rows.jsonl", [{"prompt": "a" * 400, "completion": "b" * 400}] * 4)
    process = _start(_spec(project, steps=4))
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == CATALOGUE["DATA-NO-USABLE-ROWS"].exit_code, (out, err)
    (line,) = err.splitlines()
    assert line.startswith("DATA-NO-USABLE-ROWS: ")


def _kept(project: Path) -> list[str]:
    """Return the checkpoints of all attempts, oldest first."""
    found = (project / "runs" / "first").glob("attempt-*/checkpoints/step-*")
    return sorted(str(path.relative_to(project / "runs" / "first")) for path in found)


def _has_two(folder: RunFolder) -> Callable[[], bool]:
    return lambda: len(folder.list_checkpoints()) > 1


@pytest.mark.full
def test_interrupted_runs_leave_no_more_checkpoints_than_one_needs(project: Path) -> None:
    spec = _spec(project, **(_FULL | {"steps": 3 * _STEPS}))
    for number in (1, 2, 3):
        process, folder = _start(spec), _attempt(project, number)
        wait_until(_has_two(folder), what="two checkpoints are there")
        with held(psutil.Process(_started(folder).pid)):
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, (out, err)
        assert _kept(project) == [
            f"attempt-{number:04d}/checkpoints/{path.name}"
            for path in reversed(folder.list_checkpoints())
        ]
        assert len(_kept(project)) == 2
    resumed = _kept(project)[-1]
    out, err = _start(spec).communicate(timeout=PATIENCE)
    assert "The result is in " in out, err
    last = _attempt(project, 4)
    assert _started(last).resumed_from == str(project / "runs" / "first" / resumed)
    assert _kept(project) == [
        f"attempt-0004/checkpoints/{path.name}" for path in reversed(last.list_checkpoints())
    ]


def test_a_run_that_does_not_fit_the_disk_does_not_begin(
    project: Path, refused: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage(project))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10_000_000, 7_800_000, 2_200_000))
    why = refused(_spec(project, **_FULL), "DISK-FULL")["why"]
    plan_bytes = re.search(r"([0-9.]+) GB needed on the disk, 0.00 GB free", why)
    assert plan_bytes, why
    assert str(project / "runs" / "first") in why
    assert not _attempt(project, 1).root.exists()


def test_a_training_file_with_a_byte_order_mark_is_read(project: Path) -> None:
    plain = _spec(project)
    marked = project / "marked.toml"
    marked.write_bytes(codecs.BOM_UTF8 + plain.read_bytes())
    assert _read(marked) == _read(plain)


@pytest.mark.full
def test_a_worker_that_dies_without_a_word_is_told(project: Path) -> None:
    process = _start(_spec(project, **_FULL))
    first = _attempt(project, 1)
    wait_until(first.list_checkpoints, what="a checkpoint is there")
    os.kill(_started(first).pid, signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == CATALOGUE["RUN-CRASHED"].exit_code
    (line,) = err.splitlines()
    assert line.startswith("RUN-CRASHED: ")
    assert "signal 9" in line
    assert str(first.log) in line
    out, err = _start(_spec(project, **_FULL)).communicate(timeout=PATIENCE)
    assert "The result is in " in out, err


@pytest.mark.full
def test_ctrl_c_at_once_leaves_something_to_go_on_with(project: Path) -> None:
    """While the hardware is looked at, and while the worker loads and cannot listen yet."""
    spec = _spec(project, **(_FULL | {"steps": 6}))
    for ready in ((project / "runs" / "first" / "data" / "rows.jsonl").exists, _loading(project)):
        process = _start(spec)
        wait_until(ready, what="it has begun")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, (out, err)
        (line,) = err.splitlines()
        assert line.startswith("RUN-INTERRUPTED: ")
    out, err = _start(spec).communicate(timeout=PATIENCE)
    assert "The result is in " in out, err


def _loading(project: Path) -> Callable[[], bool]:
    return _attempt(project, 1).log.exists


def _done(spec: Path) -> str:
    process = _start(spec)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    return out


def _losses(folder: RunFolder) -> list[float | None]:
    events = map(decode_event, folder.events.read_bytes().splitlines())
    return [event.loss for event in events if isinstance(event, Evaluated)]


@pytest.mark.full
def test_a_run_goes_on_from_another_runs_folder(project: Path, refused: Callable[..., Any]) -> None:
    settings = {"rank": 4, "lr": 1e-3, "steps": 4}
    _done(_spec(project, **settings))
    further = settings | {"out": "runs/second", "continues": "runs/first", "seed": 1}
    out = _done(_spec(project, **further))
    first = _attempt(project, 1)
    second = RunFolder(project / "runs" / "second" / "attempt-0001")
    assert f"Goes on from {first.list_checkpoints()[0]} with its optimizer state." in out
    assert _losses(second)[0] == _losses(first)[-1]
    origin = second.read_spec().continues
    assert origin is not None
    assert (origin.step, origin.taken) == (4, "state")
    # Asked again it is the same run, and that one is complete.
    assert str(second.result) in refused(_spec(project, **further), "RUN-SPEC-INVALID")["why"]
    third = further | {"out": "runs/third", "continues": "runs/second", "weights_only": True}
    assert "with its weights alone." in _done(_spec(project, **third))


@pytest.mark.parametrize(
    ("changes", "code", "word"),
    [
        ({"continues": "runs/nobody"}, "RUN-NOT-FOUND", "{project}/runs/nobody"),
        ({"rank": 8, "alpha": 64}, "RUN-CHECKPOINT-OTHER-JOB", "the rank was 4, and is 8"),
        ({"method": "full"}, "RUN-CHECKPOINT-OTHER-JOB", "the method was"),
        ({"split_seed": 9}, "RUN-CHECKPOINT-OTHER-JOB", "eval.split_seed was 0, and is 9"),
        ({"held_out": "rows.jsonl"}, "RUN-CHECKPOINT-OTHER-JOB", "held-out rows"),
    ],
)
def test_a_run_that_does_not_fit_the_other_is_refused(
    project: Path,
    refused: Callable[..., Any],
    changes: dict[str, object],
    code: str,
    word: str,
) -> None:
    settings: dict[str, object] = {"rank": 4, "steps": 4}
    spec = _read(_spec(project, **settings))
    base = _base(project / "model")
    first = _attempt(project, 1)
    beside, root = project, project / "runs" / "first"
    root.mkdir(parents=True)
    job = _job_spec(spec, beside, root, base, lambda _text: None)
    identity = RunIdentity(job_id="first", attempt=1, nonce="")
    first.create(job, plan_run(job, read_shape(project / "model"), MACHINE), identity)
    checkpoint = first.checkpoints / "step-00000004"
    checkpoint.mkdir()
    (checkpoint / "state.json").write_text('{"step": 4, "tensors_hash": "t"}')
    wanted = settings | {"out": "runs/second", "continues": "runs/first"} | changes
    error = refused(_spec(project, **wanted), code)
    assert word.format(project=project) in error["why"], error
    assert not (project / "runs" / "second" / "attempt-0001").exists()


def test_an_attempt_that_was_never_finished_is_passed_over(
    project: Path, refused: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a full disk while its files were written."""
    unfinished = _attempt(project, 1)
    unfinished.checkpoints.mkdir(parents=True)
    unfinished.spec.write_text("{")

    def no_machine(*_: object, **__: object) -> None:
        raise OSError(28, "the plan is asked for")

    monkeypatch.setattr("slidepack.cli.train.probe_hardware", no_machine)
    assert "the plan is asked for" in refused(_spec(project), "DISK-FULL")["why"]


@pytest.mark.parametrize(
    ("changes", "code", "word"),
    [
        ({"colour": "red"}, "RUN-SPEC-INVALID", "colour"),
        ({"method": "magic"}, "RUN-SPEC-INVALID", "method"),
        ({"too_long": "shred"}, "RUN-SPEC-INVALID", "too_long`; use drop, cut or split"),
        ({"lr": 0}, "RUN-SPEC-INVALID", "lr is 0"),
        ({"steps": "many"}, "RUN-SPEC-INVALID", "steps"),
        ({"out": ""}, "RUN-SPEC-INVALID", "out is empty"),
        ({"out": "a\0b"}, "RUN-SPEC-INVALID", "out holds"),
        ({"continues": "a\0b"}, "RUN-SPEC-INVALID", "continues holds"),
        ({"weights_only": True}, "RUN-SPEC-INVALID", "continues names no run"),
        ({"data": "a\0b"}, "RUN-SPEC-INVALID", "data holds"),
        ({"model": "nobody"}, "MODEL-NOT-FOUND", "{project}/nobody"),
        ({"model": "rows.jsonl"}, "MODEL-NOT-FOUND", "rows.jsonl"),
        ({"data": "nothing.jsonl"}, "DATA-NOT-FOUND", "{project}/nothing.jsonl"),
        ({"held_out": "nothing.jsonl"}, "DATA-NOT-FOUND", "{project}/nothing.jsonl"),
        ({"format": "magic"}, "DATA-FORMAT-UNKNOWN", "magic"),
        ({"columns.magic": "x"}, "DATA-MAPPING-INVALID", "magic"),
        ({"columns.messages": "x"}, "DATA-MAPPING-INVALID", "the columns are messages"),
        ({"out": "rows.jsonl"}, "DISK-UNWRITABLE", "{project}/rows.jsonl"),
    ],
)
def test_a_file_that_cannot_run_is_refused(
    project: Path,
    refused: Callable[..., Any],
    changes: dict[str, object],
    code: str,
    word: str,
) -> None:
    error = refused(_spec(project, **changes), code)
    assert word.format(project=project) in error["why"] + error["what"], error
    assert not _attempt(project, 1).root.exists()


@pytest.mark.parametrize(
    "content",
    [b"model =", b'model = "\xff"', b"", b'model = "model"', b"\0", b"[[model]]"],
    ids=["cut", "not utf-8", "empty", "no data", "NUL", "a table"],
)
def test_what_is_no_training_file_is_refused(
    tmp_path: Path, refused: Callable[..., Any], content: bytes
) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_bytes(content)
    assert str(spec) in refused(spec, "RUN-SPEC-INVALID")["why"]
    assert list(tmp_path.iterdir()) == [spec]


def test_a_training_file_that_is_not_there_is_refused(
    tmp_path: Path, refused: Callable[..., Any]
) -> None:
    for spec in (tmp_path / "spec.toml", tmp_path):
        assert str(spec) in refused(spec, "RUN-SPEC-INVALID")["why"]
