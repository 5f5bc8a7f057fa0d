"""The run folder: the directory one attempt owns, and the only thing its worker needs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import Frozen, JobSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.sweep import LaneSweep

NONCE_VARIABLE: Final = "SLIDEPACK_NONCE"
KEPT: Final = 2
"""Newest checkpoints that stay: one to fall back to where the last is broken."""

_T = TypeVar("_T")


class RunIdentity(Frozen, frozen=True, kw_only=True):
    """Who this run is and where it goes on from; written by the daemon before the worker starts."""

    job_id: str
    attempt: int
    nonce: str
    """Random; the worker carries it in its environment (`NONCE_VARIABLE`), so that a daemon that
    was restarted finds its worker again and never takes a recycled pid for one."""
    resume_from: tuple[str, ...] = ()
    """Checkpoint folders of earlier attempts, newest first; the first valid one is taken."""
    adopt_from: tuple[str, ...] = ()
    """Checkpoint folders of another job's attempts, newest first; the first one that is valid and
    good is gone on from where `resume_from` names none that is. The other job may differ in what
    `engine.contract.lineage` allows; where none of these fits, the run fails."""
    disk_floor_bytes: int = 0
    """What checkpoints and result leave free on their file system."""

    def __post_init__(self) -> None:
        """Refuse a floor below nothing."""
        if self.disk_floor_bytes < 0:
            raise ValueError(f"disk_floor_bytes is {self.disk_floor_bytes}; use 0 or more")


class RunFolder:
    """Names and reads the files of a run folder."""

    def __init__(self, root: Path) -> None:
        """Wrap the folder `root`; nothing is created."""
        self.root = root
        self.spec = root / "spec.json"
        self.plan = root / "plan.json"
        self.identity = root / "run.json"
        self.sweep = root / "sweep.json"
        self.lock = root / "worker.lock"
        self.events = root / "events.jsonl"
        self.control = root / "control.jsonl"
        self.log = root / "worker.log"
        self.rejects = root / "rejects.jsonl"
        self.checkpoints = root / "checkpoints"
        self.result = root / "result"

    def create(self, spec: JobSpec, plan: RunPlan, identity: RunIdentity) -> None:
        """Create the folder and its input files, durably.

        Raises:
            OSError: the disk refused.
        """
        self.checkpoints.mkdir(parents=True)
        write_structs({self.spec: spec, self.plan: plan, self.identity: identity})
        fsync_folder(self.root.parent)

    def read_spec(self) -> JobSpec:
        """Return the job specification."""
        return read_struct(self.spec, JobSpec)

    def read_plan(self) -> RunPlan:
        """Return the run plan."""
        return read_struct(self.plan, RunPlan)

    def read_identity(self) -> RunIdentity:
        """Return the run's identity."""
        return read_struct(self.identity, RunIdentity)

    def read_sweep(self) -> LaneSweep | None:
        """Return where the run is judged among others, or None where it is a job of its own."""
        return read_struct(self.sweep, LaneSweep) if self.sweep.exists() else None

    def list_checkpoints(self) -> list[Path]:
        """Return the finished checkpoints, newest first."""
        return finished_checkpoints(self.checkpoints)


def finished_checkpoints(folder: Path) -> list[Path]:
    """Return the finished checkpoints in a folder, newest first; unfinished ones have dot names."""
    return sorted(folder.glob("step-*"), reverse=True)


def read_struct(path: Path, kind: type[_T]) -> _T:
    """Return a struct from its JSON file.

    Raises:
        SlidepackError: RUN-FOLDER-BROKEN.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise SlidepackError(
            "RUN-FOLDER-BROKEN",
            f"{path.name} of the run folder cannot be read.",
            why=f"{path}: {error}",
            fix="Start the job again; a retry gets a new run folder.",
        ) from error


def write_structs(files: Mapping[Path, msgspec.Struct]) -> None:
    """Write structs as JSON that people can read, each whole or not at all.

    Raises:
        OSError: the disk refused.
    """
    for path, value in files.items():
        write_atomic(path, msgspec.json.format(msgspec.json.encode(value), indent=2))


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either the old or the whole new content after a crash."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        # A half-written file on a full disk would only take up more of it.
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def fsync_folder(folder: Path) -> None:
    """Make the folder's entries durable, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
