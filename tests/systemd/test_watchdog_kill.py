"""What systemd's watchdog does to a daemon that hangs: SIGABRT to it alone (KillMode=process)."""

import os
import signal
from pathlib import Path

import pytest
from support.daemons import DaemonProcess
from support.queueing import make_farm
from support.waiting import PATIENCE


@pytest.mark.full
def test_workers_outlive_a_watchdog_kill(
    daemon: DaemonProcess, tiny_model: Path, tmp_path: Path
) -> None:
    farm = make_farm(daemon, tiny_model, tmp_path)
    job = farm.queue()
    farm.reach(job, 3)
    worker = farm.worker(job)
    assert daemon.process is not None
    os.kill(daemon.process.pid, signal.SIGABRT)
    assert daemon.process.wait(timeout=PATIENCE) == -signal.SIGABRT
    assert worker.is_running()
    assert os.getpgid(worker.pid) == worker.pid, "it leads a group of its own"
    daemon.kill()
    daemon.start()
    assert farm.worker(job).pid == worker.pid, "it was found again"
    farm.act(job, "cancel")
    daemon.wait_for(job, "cancelled")
    assert [attempt["number"] for attempt in daemon.attempts(job)] == [1]
