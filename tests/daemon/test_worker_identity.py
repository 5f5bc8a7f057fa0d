"""A worker is found by pid, start time, boot and nonce; another process never is."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.waiting import wait_until

from slidepack.daemon.supervisor.worker_process import (
    current_boot_id,
    find_worker,
    start_ticks,
)
from slidepack.engine.contract.runfolder import NONCE_VARIABLE


@contextmanager
def _process(nonce: str = "", *, leads: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | ({NONCE_VARIABLE: nonce} if nonce else {})
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        env=environment,
        stdin=subprocess.PIPE,
        start_new_session=leads,
    ) as process:
        # Between fork and exec it still carries this process's environment.
        exe = Path(f"/proc/{process.pid}/cmdline")
        wait_until(lambda: b"stdin.read" in exe.read_bytes(), what="it runs its own program")
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    with _process("the-nonce") as process:
        yield process


def test_it_is_found_with_and_without_its_number(worker: subprocess.Popen[bytes]) -> None:
    ticks, boot = start_ticks(worker.pid), current_boot_id()
    assert ticks
    assert boot
    for known in (
        {},
        {"boot_id": boot},
        {"pid": worker.pid, "started_ticks": ticks, "boot_id": boot},
    ):
        found = find_worker("the-nonce", **known)
        assert found is not None, known
        assert found.pid == worker.pid
        assert found.started_ticks == ticks


def test_a_recycled_number_is_nobodys_worker(worker: subprocess.Popen[bytes]) -> None:
    ticks = start_ticks(worker.pid)
    assert ticks is not None
    with ExitStack() as others:
        # The same number, another process: its start, its nonce or its boot differs.
        stranger = others.enter_context(_process())
        twin = others.enter_context(_process("another-nonce"))
        for pid, started, boot in (
            (worker.pid, ticks - 1, ""),
            (worker.pid, ticks, "an-earlier-boot"),
            (stranger.pid, start_ticks(stranger.pid), ""),
            (twin.pid, start_ticks(twin.pid), ""),
        ):
            found = find_worker("the-nonce", pid=pid, started_ticks=started, boot_id=boot)
            assert found is None, (pid, started, boot)
        for process in (stranger, twin, worker):
            assert process.poll() is None


def test_what_a_worker_started_is_not_the_worker() -> None:
    with _process("child-nonce", leads=False):
        assert find_worker("child-nonce") is None


def test_a_signal_for_a_worker_that_has_ended_reaches_nobody(
    worker: subprocess.Popen[bytes],
) -> None:
    found = find_worker("the-nonce")
    assert found is not None
    worker.kill()
    worker.wait()
    assert start_ticks(worker.pid) is None
    found.terminate()
    found.kill()
    assert not found.is_running()


def test_start_times_are_read_behind_any_name(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    fields = " ".join(str(n) for n in range(4, 60))
    (tmp_path / "7/stat").write_text(f"7 (a b) c) (d) S {fields}")
    assert start_ticks(7, tmp_path) == 22
    assert start_ticks(8, tmp_path) is None
