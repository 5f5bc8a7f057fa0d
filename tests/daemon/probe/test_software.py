import sys
from pathlib import Path

import pytest

from slidepack.daemon.probe.problem import ProbeFailure
from slidepack.daemon.probe.software import read_software, torch_report_command


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_the_real_child_is_read() -> None:
    software = read_software(torch_report_command())
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
        read_software(python(code), timeout_seconds=limit)
    assert why in failure.value.why
    assert failure.value.fix


def test_a_python_that_is_not_there_gives_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ProbeFailure) as failure:
        read_software((str(tmp_path / "python"),))
    assert "could not be started" in failure.value.why


def test_what_libraries_print_before_the_report_is_passed_over() -> None:
    noisy = (
        "import runpy; print('loading'); "
        "runpy.run_module('slidepack.engine.torch_report', run_name='__main__')"
    )
    assert read_software(python(noisy)).torch.version
