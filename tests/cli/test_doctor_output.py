import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console
from support.doctor_reports import HEALTHY, SETTLED

from slidepack.cli import doctor as command
from slidepack.cli.doctor import DoctorOutput, doctor, print_report
from slidepack.daemon.doctor.judge import findings
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport


def printed(report: HardwareReport, width: int = 100) -> str:
    stream = io.StringIO()
    print_report(report, findings(report), Console(file=stream, width=width))
    return stream.getvalue()


def test_the_printed_report_holds_the_values() -> None:
    text = printed(HEALTHY, width=140)
    for value in (
        "NVIDIA GeForce RTX 4090",
        "20.0 GiB / 24.0 GiB",
        "4.0 x16",
        "game [beta] (7) 3.0 GiB",
        "AMD Ryzen 9 7950X, 16 cores, 32 threads, 8 allowed",
        "/dev/nvme0n1p2",
        "Ready to train.",
    ):
        assert value in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_report_prints_at_every_width(width: Any) -> None:
    unread = ProbeProblem(item="x", what="Not read.", why="[bold]", fix="")
    broken = HardwareReport(
        nvidia=unread,
        amd=unread,
        cpu=unread,
        memory=unread,
        drives=unread,
        wsl=unread,
        software=unread,
    )
    assert "7 problems to solve." in printed(broken, width)
    assert "[bold]" in printed(broken, width)
    assert all(len(line) <= width for line in printed(broken, width).splitlines())
    assert all(len(line) <= width for line in printed(HEALTHY, width).splitlines())


def run_doctor(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "slidepack.cli", "doctor", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "SLIDEPACK_HOME": str(home), **environment},
        check=False,
    )


@pytest.mark.full
def test_json_is_one_object_on_stdout(tmp_path: Path) -> None:
    child = run_doctor(tmp_path / "data")
    output = msgspec.json.decode(child.stdout, type=DoctorOutput)
    assert set(json.loads(child.stdout)) == {"hardware", "setup", "findings"}
    problems = [one for one in output.findings if one.level == "problem"]
    assert child.returncode == (1 if problems else 0)
    assert output.setup.daemon_pid is None
    # What was measured is gone, and looking makes no data directory.
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_hides_torch_is_named(tmp_path: Path) -> None:
    hiding = tmp_path / "scripts"
    hiding.mkdir()
    (hiding / "torch.py").write_text("raise RuntimeError('not torch')\n")
    child = run_doctor(tmp_path, PYTHONPATH=str(hiding))
    assert child.returncode == 1
    output = msgspec.json.decode(child.stdout, type=DoctorOutput)
    (problem,) = (one for one in output.findings if "foreign torch" in one.title)
    assert str(hiding / "torch.py") in problem.evidence
    assert "unset PYTHONPATH" in problem.fix


def test_the_human_report_tells_the_surroundings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "probe_hardware", lambda *_, **__: HEALTHY)
    monkeypatch.setattr(command, "probe_setup", lambda _: SETTLED)
    assert doctor(False, tmp_path) == 0
    text = capsys.readouterr().out
    for part in ("Machine", "Findings", "writes 2000 MB/s", "Ready to train."):
        assert part in text
