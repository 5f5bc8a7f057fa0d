"""Exports at a real daemon, and in stores without one."""

from pathlib import Path
from typing import Any

import psutil

from slidepack.daemon.changes import Changes
from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.exports.exports import Exports
from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef
from support.daemons import DaemonProcess
from support.stores import Stores
from support.waiting import PATIENCE, wait_until

EXPORTER = "slidepack.engine.export"
"""The module that an export's process runs."""

ENDED = ("done", "failed", "cancelled")


def finish_export(daemon: DaemonProcess, export_id: int, seconds: float = PATIENCE) -> Any:
    """Wait until an export has ended and return its record."""

    def ended() -> Any:
        found = daemon.api("GET", f"/exports/{export_id}")
        return found if found["state"] in ENDED else None

    return wait_until(ended, seconds=seconds, what=f"export {export_id} ends")


def exporters(home: Path) -> list[psutil.Process]:
    """Return the exporter processes of a data directory."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if EXPORTER in command and command[-1].startswith(str(home)):
            found.append(process)
    return found


def completed_job(stores: Stores, base: Path, result: Path, name: str = "A bot") -> int:
    """Record a completed job over a base model, with a result, and return its id."""
    spec = JobSpec(
        name=name,
        base=ModelRef(model_id="small", path=str(base), content_hash="-"),
        dataset=DatasetRef(dataset_id="1", path="/nowhere/rows.jsonl", content_hash="-"),
        method=LoraMethod(),
        steps=10,
    )
    job_id = stores.jobs.add(spec, 0.0).id
    stores.jobs.set_result(job_id, str(result))
    stores.force(job_id, "completed")
    return job_id


def open_exports(stores: Stores, floor_bytes: int = 0, training: bool = False) -> Exports:
    """Return the exports of a database, in the folder `exports` beside it."""
    folder = stores.folder / "exports"
    folder.mkdir(exist_ok=True)
    return Exports(
        database=stores.database,
        jobs=stores.jobs,
        folder=folder,
        room=DiskRoom(stores.folder, floor_bytes),
        changes=Changes(),
        training=lambda: training,
    )
