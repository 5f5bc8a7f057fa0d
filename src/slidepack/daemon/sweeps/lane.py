"""Where the members of a sweep are judged: its folder, and what their run folders say of it."""

from pathlib import Path

from slidepack.daemon.paths import DataPaths
from slidepack.daemon.store.sweeps import SweepStore
from slidepack.engine.contract.runfolder import RunFolder, read_struct, write_structs
from slidepack.engine.contract.sweep import LaneSweep, RungResults

__all__ = ["LaneSweeps", "read_rungs", "sweep_folder"]


class LaneSweeps:
    """Tells the workers of members where they are judged."""

    def __init__(self, store: SweepStore, paths: DataPaths) -> None:
        """Bind the store and the data directory."""
        self._store = store
        self._paths = paths

    def lane_sweep(self, job_id: int) -> LaneSweep | None:
        """Return where a job is judged; None for one that nobody judges."""
        sweep = self._store.of_job(job_id)
        if sweep is None or sweep.request.halving is None:
            return None
        rungs = _rungs(self._paths, sweep.id)
        return LaneSweep(rungs=str(rungs), halving=sweep.request.halving)

    def put(self, job_id: int, folder: RunFolder) -> None:
        """Write where a job is judged into a run folder that was just made.

        Raises:
            OSError: the disk refused.
            SlidepackError: DISK-UNWRITABLE or DISK-FULL: the database does not answer.
        """
        judged = self.lane_sweep(job_id)
        if judged is not None:
            write_structs({folder.sweep: judged})


def sweep_folder(paths: DataPaths, sweep_id: int) -> Path:
    """Return the folder of a sweep; there is none before its first member was judged."""
    return paths.home / "sweeps" / str(sweep_id)


def read_rungs(paths: DataPaths, sweep_id: int) -> RungResults:
    """Return what was judged so far.

    Raises:
        SlidepackError: RUN-FOLDER-BROKEN.
    """
    path = _rungs(paths, sweep_id)
    return read_struct(path, RungResults) if path.exists() else RungResults()


def _rungs(paths: DataPaths, sweep_id: int) -> Path:
    return (sweep_folder(paths, sweep_id) / "rungs.json").absolute()
