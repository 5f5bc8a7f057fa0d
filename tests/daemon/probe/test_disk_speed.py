import errno
import fcntl
import os
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from slidepack.daemon.probe.disk_speed import DiskSpeed, DiskUnmeasured, measure_disk
from slidepack.daemon.probe.problem import ProbeFailure

CHUNK = 8 << 20
ROOMY = (100 * 10**9, 50 * 10**9)


def measure(folder: Path, **options: Any) -> DiskSpeed | DiskUnmeasured:
    options = {"max_bytes": 3 * CHUNK, "usage": lambda _: ROOMY, **options}
    return measure_disk(folder, **options)


def test_a_real_drive_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    speed = measure(tmp_path / "not" / "yet")
    assert isinstance(speed, DiskSpeed)
    assert speed.folder == str(tmp_path)
    assert speed.measured_bytes == 3 * CHUNK
    assert speed.write_bytes_per_second > 0
    assert speed.read_bytes_per_second > 0
    assert speed.both_bytes_per_second > 0
    assert list(tmp_path.iterdir()) == []


def test_the_bytes_have_a_limit(tmp_path: Path) -> None:
    speed = measure(tmp_path, max_bytes=2 * CHUNK - 1)
    assert isinstance(speed, DiskSpeed)
    assert speed.measured_bytes == CHUNK


def test_the_time_has_a_limit(tmp_path: Path) -> None:
    looks = count(0.0, 0.6)
    speed = measure(tmp_path, max_seconds=2.0, clock=lambda: next(looks))
    assert isinstance(speed, DiskSpeed)
    # Two looks of 0.6 s each pass the second that writing has; the sync takes one more.
    assert speed.measured_bytes == 2 * CHUNK
    assert speed.write_bytes_per_second == pytest.approx(2 * CHUNK / 1.8)
    assert speed.read_bytes_per_second == pytest.approx(2 * CHUNK / 1.2)


def test_a_drive_that_fails_while_both_go_on_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.pwritev

    def fail_beside(descriptor: int, buffers: Any, offset: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            raise OSError(errno.EIO, "Input/output error")
        return real_write(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", fail_beside)
    with pytest.raises(ProbeFailure, match="does not work as it should"):
        measure(tmp_path)


def test_a_nearly_full_drive_is_left_alone(tmp_path: Path) -> None:
    answer = measure(tmp_path, usage=lambda _: (10**12, 9 * 10**9))
    assert isinstance(answer, DiskUnmeasured)
    assert "9.0 GB" in answer.why


def test_a_folder_that_cannot_be_written_is_a_failure() -> None:
    with pytest.raises(ProbeFailure) as failure:
        measure(Path("/sys"))
    assert "/sys" in failure.value.why
    assert "SLIDEPACK_HOME" in failure.value.fix


def test_a_drive_that_fails_is_a_failure(tmp_path: Path) -> None:
    def broken(_: str) -> tuple[int, int]:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(ProbeFailure) as failure:
        measure(tmp_path, usage=broken)
    assert "Input/output error" in failure.value.why
    assert "dmesg" in failure.value.fix


def test_a_drive_that_fills_up_meanwhile_is_told(tmp_path: Path) -> None:
    code = (
        "import resource\nfrom pathlib import Path\n"
        "from slidepack.daemon.probe.disk_speed import DiskUnmeasured, measure_disk\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        f"answer = measure_disk(Path({str(tmp_path)!r}), usage=lambda _: {ROOMY})\n"
        "assert isinstance(answer, DiskUnmeasured), answer\n"
        "assert 'too large' in answer.why, answer\n"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr


def test_a_file_system_without_nameless_files_and_o_direct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open, real_fcntl = os.open, fcntl.fcntl
    named: list[str] = []

    def open_named(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no nameless files")
        named.append(str(path))
        return real_open(path, flags, *rest, **more)

    def refuse_direct(descriptor: int, command: int, value: int = 0) -> int:
        if command == fcntl.F_SETFL and value & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return int(real_fcntl(descriptor, command, value))

    dropped: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: dropped.append(given[-1]))
    monkeypatch.setattr(os, "open", open_named)
    monkeypatch.setattr(fcntl, "fcntl", refuse_direct)
    speed = measure(tmp_path)
    assert isinstance(speed, DiskSpeed)
    assert not speed.direct
    assert speed.measured_bytes == 3 * CHUNK
    assert dropped == 2 * [os.POSIX_FADV_DONTNEED]
    assert any(".slidepack-speed-" in path for path in named)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_takes_the_flag_and_refuses_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.pwritev

    def refuse_direct(descriptor: int, buffers: Any, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct write")
        return real_write(descriptor, buffers, offset)

    monkeypatch.setattr(os, "pwritev", refuse_direct)
    speed = measure(tmp_path)
    assert isinstance(speed, DiskSpeed)
    assert not speed.direct
    assert speed.measured_bytes == 3 * CHUNK
