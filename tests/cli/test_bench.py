import json
import subprocess
from typing import Any

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
    }
    done = subprocess.CompletedProcess([], 0, stdout=json.dumps(answer) + "\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    monkeypatch.setattr(output, "Console", lambda **kwargs: Console(width=200, **kwargs))
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


def test_a_benchmark_that_did_not_run_has_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 1, stdout="", stderr="Traceback\nRuntimeError: no GPU\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    with pytest.raises(SlidepackError, match=r"RUN-CRASHED.*no GPU"):
        bench.kernels()
