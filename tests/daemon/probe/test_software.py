import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from support.waiting import wait_until

from slidepack.daemon.probe.problem import ProbeFailure
from slidepack.daemon.probe.software import SoftwareProbe, torch_report_command


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_the_real_child_is_read() -> None:
    software = SoftwareProbe(torch_report_command()).ask()
    assert software.python.startswith("3.")
    assert software.torch.build in ("cpu", "cuda", "rocm")
    assert software.torch.version
    assert (Path(software.torch.location) / "__init__.py").is_file()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import time; time.sleep(60)", "within 0.5 seconds"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("raise SystemError('driver is upset')", "SystemError: driver is upset"),
        ("raise SystemExit(3)", "status 3"),
        ("pass", "not a report"),
        ("print('{\"python\": 3}')", "not a report"),
    ],
    ids=["hangs", "crashes", "raises", "exits", "is-silent", "prints-nonsense"],
)
def test_a_child_that_fails_gives_its_reason(code: str, why: str) -> None:
    limit = 0.5 if "sleep" in code else 30
    with pytest.raises(ProbeFailure) as failure:
        SoftwareProbe(python(code), timeout_seconds=limit).ask()
    assert why in failure.value.why
    assert failure.value.fix


def test_a_python_that_is_not_there_gives_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ProbeFailure) as failure:
        SoftwareProbe((str(tmp_path / "python"),)).ask()
    assert "could not be started" in failure.value.why


def test_what_libraries_print_before_the_report_is_passed_over() -> None:
    noisy = (
        "import runpy; print('loading'); "
        "runpy.run_module('slidepack.engine.torch_report', run_name='__main__')"
    )
    assert SoftwareProbe(python(noisy)).ask().torch.version


def _seconds(probe: SoftwareProbe) -> float:
    began = time.monotonic()
    with pytest.raises(ProbeFailure):
        probe.ask()
    return time.monotonic() - began


def test_who_stops_does_not_wait_for_an_answer() -> None:
    probe = SoftwareProbe(python("import time; time.sleep(600)"))
    stopping = threading.Timer(0.5, probe.stop)
    stopping.start()
    assert _seconds(probe) < 60
    stopping.join()


_TELLS_AND_HANGS = ("/bin/sh", "-c", 'echo $$ >> "$0"; exec sleep 600')
"""Within milliseconds, of which a busy machine makes no seconds."""


def _pids(path: Path) -> list[int]:
    return [int(pid) for pid in path.read_text().split()]


def test_what_the_child_started_holds_nobody_up(tmp_path: Path) -> None:
    told = tmp_path / "pids"
    command = ("/bin/sh", "-c", '"$@"; exit', "sh", *_TELLS_AND_HANGS, str(told))
    assert _seconds(SoftwareProbe(command, timeout_seconds=2)) < 60
    (left,) = _pids(told)
    psutil.Process(left).kill()


@pytest.mark.full
def test_a_child_that_nobody_can_end_is_not_joined_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that a hung driver holds: a night would gather hundreds of them."""
    told = tmp_path / "pids"
    probe = SoftwareProbe((*_TELLS_AND_HANGS, str(told)), timeout_seconds=2)
    with monkeypatch.context() as hung:
        hung.setattr(subprocess.Popen, "kill", lambda _child: None)
        _seconds(probe)
    (first,) = _pids(told)
    with pytest.raises(ProbeFailure) as failure:
        probe.ask()
    assert "cannot be ended" in failure.value.why
    assert _pids(told) == [first]
    psutil.Process(first).kill()
    wait_until(lambda: _seconds(probe) and len(_pids(told)) == 2, what="it is asked anew")
