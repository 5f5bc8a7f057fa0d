"""A daemon that is killed or stopped while it makes an export makes it anew; nothing half stays."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.daemons import DaemonProcess
from support.exporting import completed_job, exporters, finish_export
from support.exports import random_adapter
from support.held import has_ended
from support.stores import open_stores
from support.waiting import wait_until

_MERGED = {"format": "merged"}
"""Checked, so that the half folder is there for seconds."""


@pytest.fixture
def daemon(tiny_model: Path, tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon that finds a completed job in its database; nothing was trained for it."""
    home = tmp_path / "home"
    home.mkdir()
    completed_job(open_stores(home), tiny_model, random_adapter(tiny_model, tmp_path / "result"))
    with DaemonProcess(home) as process:
        yield process


def _half_made(daemon: DaemonProcess) -> tuple[int, Path, psutil.Process]:
    export_id = daemon.api("POST", "/jobs/1/exports", json=_MERGED)["id"]
    home = daemon.home / "exports" / str(export_id)
    (half,) = wait_until(lambda: list(home.glob(".files.export-*/files")), what="it is half made")
    (process,) = exporters(daemon.home)
    return export_id, half, process


def test_a_killed_daemons_exporter_is_ended_by_the_next_one(daemon: DaemonProcess) -> None:
    export_id, half, orphan = _half_made(daemon)
    # It cannot leave by itself, as one that a disk holds up.
    os.kill(orphan.pid, signal.SIGSTOP)
    daemon.kill()
    assert orphan.is_running() and half.exists()
    daemon.start()
    assert has_ended(orphan)
    assert not half.exists()
    assert daemon.api("GET", f"/exports/{export_id}")["state"] in ("queued", "running")

    def begun_anew() -> Any:
        return [process for process in exporters(daemon.home) if process != orphan]

    wait_until(begun_anew, what="it is started anew")
    daemon.api("POST", f"/exports/{export_id}/cancel")
    assert finish_export(daemon, export_id)["state"] == "cancelled"
    assert not (daemon.home / "exports" / str(export_id)).exists()
    assert exporters(daemon.home) == []
    assert "Traceback" not in daemon.log


@pytest.mark.full
def test_killed_and_stopped_it_still_comes_to_its_end(daemon: DaemonProcess) -> None:
    export_id, half, orphan = _half_made(daemon)
    daemon.kill()
    # Its next line reaches nobody, so it takes its half folder with it.
    wait_until(lambda: has_ended(orphan))
    assert not half.exists()
    daemon.start()
    wait_until(lambda: exporters(daemon.home), what="it is started anew")
    assert daemon.stop() == 0
    assert exporters(daemon.home) == []
    daemon.start()
    done = finish_export(daemon, export_id)
    assert done["state"] == "done" and done["verification"]["top1_agreement"] == 1.0
    home = daemon.home / "exports" / str(export_id)
    assert sorted(path.name for path in home.iterdir()) == ["export.log", "files", "request.json"]
    assert "Traceback" not in daemon.log
