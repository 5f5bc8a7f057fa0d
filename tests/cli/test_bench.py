import json
import subprocess
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rich.console import Console

from slidepack.cli import bench, output
from slidepack.engine.contract.errors import SlidepackError


def _row(**changed: Any) -> dict[str, Any]:
    return {
        "operation": "rms_norm forward",
        "milliseconds": 0.0381,
        "amount": 134217728,
        "unit": "bytes",
        "limit": "copy 3.61 TB/s",
        "share": 0.97,
        "eager_ratio": 5.254,
        "torch_fused_ratio": 1.1,
        "compile_ratio": 1.02,
        "liger_ratio": None,
        "extra_bytes": 0,
        "eager_extra_bytes": 402653184,
        "failures": {},
    } | changed


def _lora_row(**changed: Any) -> dict[str, Any]:
    return {
        "tokens": 4096,
        "in": 4096,
        "out": 14336,
        "adapters": 32,
        "base_ms": 1.4,
        "ours_ms": 1.54,
        "overhead": 0.1,
        "loop_ms": 4.2,
        "loop_overhead": 2.0,
        "extra_bytes": 12_000_000,
    } | changed


def _answer(
    monkeypatch: pytest.MonkeyPatch, status: int, stdout: str, stderr: str = ""
) -> list[list[str]]:
    """Let the benchmark end this way; return the commands that were run."""
    commands: list[list[str]] = []

    def run(command: list[str], **kwargs: Any) -> "subprocess.CompletedProcess[str]":
        commands.append(command)
        return subprocess.CompletedProcess(command, status, stdout=stdout, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(output, "Console", lambda **kwargs: Console(width=200, **kwargs))
    return commands


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    head = _row(
        operation="linear_cross_entropy",
        amount=25_800_000_000_000,
        unit="flops",
        eager_ratio=None,
        eager_extra_bytes=None,
        failures={"eager": "OutOfMemoryError: too large"},
    )
    answer = {
        "device": "NVIDIA H200",
        "versions": {"torch": "2.11.0", "triton": "3.6.0", "liger": None},
        "operations": [_row(), head],
        "lora": [_lora_row(), _lora_row(tokens=16384, loop_ms=None, loop_overhead=None)],
    }
    _answer(monkeypatch, 0, json.dumps(answer) + "\n")
    return answer


def test_kernels_prints_a_row_an_operation(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.kernels()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["operation", "ms", "work"]
    assert lines[1].split() == [
        *("rms_norm", "forward", "0.038", "134", "MB", "copy", "3.61", "TB/s", "97%"),
        *("5.25", "1.10", "1.02", "0", "MB", "403", "MB"),
    ]
    assert "25.8 TFLOP" in lines[2]


def test_kernels_prints_the_lora_shapes_as_a_table_of_their_own(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.kernels()
    lines = capsys.readouterr().out.splitlines()
    (head,) = [i for i, line in enumerate(lines) if line.startswith("LoRA linear")]
    assert lines[head + 1].split() == [
        *("4096", "to", "14336", "4096", "32", "1.400", "1.540", "10.0%"),
        *("4.200", "200%", "12", "MB"),
    ]
    assert lines[head + 2].split()[3:] == ["16384", "32", "1.400", "1.540", "10.0%", "12", "MB"]


def test_kernels_says_what_is_missing_and_what_was_measured(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.kernels()
    text = capsys.readouterr().out
    assert "linear_cross_entropy: eager failed: OutOfMemoryError: too large" in text
    assert "Liger is not installed: `pip install liger-kernel` adds its column." in text
    assert text.endswith("NVIDIA H200, torch 2.11.0, triton 3.6.0\n")


def test_kernels_json_is_the_whole_answer(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bench.kernels(json_output=True)
    assert json.loads(capsys.readouterr().out) == result


_TUNED = {
    "device": "NVIDIA H200",
    "device_class": "sm_90",
    "versions": {"torch": "2.11.0", "triton": "3.6.0", "liger": None},
    "operations": {"nf4": {"blocks": 32, "warps": 1, "measured": "41.9 us"}},
    "toml": '[sm_90.nf4]\nblocks = 32\nwarps = 1\nmeasured = "41.9 us"\n',
    "written": None,
}


def test_tune_prints_the_rows_and_writes_nothing_by_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _answer(monkeypatch, 0, json.dumps(_TUNED) + "\n")
    bench.tune()
    text = capsys.readouterr().out
    assert text.startswith(str(_TUNED["toml"]))
    assert "Nothing is written" in text
    assert [command[-2:] for command in commands] == [["slidepack.engine.bench", "tune"]]


def test_tune_writes_when_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = _answer(monkeypatch, 0, json.dumps(_TUNED | {"written": "/a/table.toml"}) + "\n")
    bench.tune(write=True)
    assert "Written to /a/table.toml." in capsys.readouterr().out
    assert commands[0][-2:] == ["tune", "--write"]


def test_tune_json_is_the_whole_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _answer(monkeypatch, 0, json.dumps(_TUNED) + "\n")
    bench.tune(json_output=True)
    assert json.loads(capsys.readouterr().out) == _TUNED


def test_a_coded_error_of_the_benchmark_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    error = SlidepackError("DISK-UNWRITABLE", "The table cannot be written.", why="/a: read-only")
    said = msgspec.json.encode({"error": error.report}).decode() + "\n"
    _answer(monkeypatch, error.exit_code, said, str(error))
    with pytest.raises(SlidepackError) as raised:
        bench.tune(write=True)
    assert raised.value.report == error.report


@pytest.mark.parametrize("stdout", ["", "half a line", '{"error": 3}\n'])
@pytest.mark.parametrize("command", [bench.kernels, bench.tune])
def test_a_benchmark_that_did_not_run_has_a_code(
    monkeypatch: pytest.MonkeyPatch, command: Callable[[], None], stdout: str
) -> None:
    _answer(monkeypatch, 1, stdout, "Traceback\nRuntimeError: no GPU\n")
    with pytest.raises(SlidepackError, match=r"RUN-CRASHED.*no GPU"):
        command()
