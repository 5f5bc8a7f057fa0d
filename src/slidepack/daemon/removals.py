"""What deleting a job, a dataset or a model would free, what would stay, and what forbids it."""

import itertools
import os
import shutil
from pathlib import Path
from typing import Final, Literal

import msgspec

from slidepack.daemon.changes import Changes
from slidepack.daemon.exports.record import ExportRecord
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.queue import Queue, counted_jobs
from slidepack.daemon.store.catalogue import Catalogue, Use
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.supervisor.tier_leftovers import tier_folders_of
from slidepack.engine.contract.errors import ErrorReport, SlidepackError

__all__ = ["Removal", "Removals", "disk_bytes"]

_BLOCK_BYTES: Final = 512
"""Of `st_blocks`, whatever the file system's own are."""


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a deletion. Nothing is done."""

    kind: Literal["job", "dataset", "model"]
    id: str
    name: str
    frees_bytes: int
    """On the disk; what other jobs still share is not counted."""
    deletes: tuple[str, ...]
    """In sentences, as `keeps`."""
    keeps: tuple[str, ...]
    exports: tuple[int, ...] = ()
    """Exports that stay: they are copies."""
    refusal: ErrorReport | None
    """Why it cannot be deleted now; None where it can."""


class Removals:
    """Says what deleting would do, and deletes datasets."""

    def __init__(
        self,
        *,
        database: Database,
        catalogue: Catalogue,
        jobs: JobStore,
        queue: Queue,
        paths: DataPaths,
        changes: Changes,
    ) -> None:
        """Bind the stores.

        Args:
            database: for transactions.
            catalogue: models and datasets.
            jobs: the queue's store.
            queue: deletes jobs and models.
            paths: the data directory.
            changes: told about every change.
        """
        self._db = database
        self._catalogue = catalogue
        self._jobs = jobs
        self._queue = queue
        self._paths = paths
        self._changes = changes

    def of_job(self, job_id: int) -> Removal:
        """Return what deleting a job would do.

        Raises:
            SlidepackError: RUN-NOT-FOUND.
        """
        job = self._jobs.get(job_id)
        folder = self._paths.jobs / str(job_id)
        exports: list[ExportRecord] = []
        refusal = None
        try:
            exports = self._queue.require_removable(job_id)
        except SlidepackError as error:
            refusal = error.report
        return Removal(
            kind="job",
            id=str(job_id),
            name=job.name,
            frees_bytes=disk_bytes(folder, *tier_folders_of(folder)),
            deletes=("Its chart, its log, its checkpoints and its result.",),
            keeps=(
                "The dataset and the model.",
                *(f"Export {export.id} in {export.folder}." for export in exports),
            ),
            exports=tuple(export.id for export in exports),
            refusal=refusal,
        )

    def of_dataset(self, dataset_id: int) -> Removal:
        """Return what deleting a dataset would do.

        Raises:
            SlidepackError: DATA-NOT-FOUND.
        """
        dataset = self._catalogue.dataset(dataset_id)
        uses = self._catalogue.jobs_of_dataset(dataset_id)
        keeps = ["The file that it was made from, wherever it came from: this is a copy."]
        if ended := [use.job_id for use in uses if use.ended]:
            keeps.append(
                f"The results of {_list(ended)}: only to run one of them again needs the rows."
            )
        return Removal(
            kind="dataset",
            id=str(dataset_id),
            name=dataset.name,
            frees_bytes=disk_bytes(self._paths.dataset(dataset_id)),
            deletes=("The copy of the file, its rows as they are trained, and what was left out.",),
            keeps=tuple(keeps),
            refusal=_dataset_refusal(dataset_id, uses),
        )

    def of_model(self, model_id: str) -> Removal:
        """Return what deleting a model would do.

        Raises:
            SlidepackError: MODEL-NOT-FOUND.
        """
        model = self._catalogue.model(model_id)
        refusal = None
        try:
            self._queue.require_forgettable(model_id)
        except SlidepackError as error:
            refusal = error.report
        ours = model.kind != "folder"
        folder = self._paths.models / model_id
        ended = [use.job_id for use in self._catalogue.jobs_of_model(model_id) if use.ended]
        keeps = [] if ours else [f"The folder {model.source}: only its place in the list goes."]
        if ended:
            keeps.append(f"The results of {_list(ended)}: an adapter needs its base to be used.")
        return Removal(
            kind="model",
            id=model_id,
            name=model.name,
            frees_bytes=disk_bytes(folder) if ours else 0,
            deletes=("What was downloaded or converted for it.",) if ours else (),
            keeps=tuple(keeps),
            refusal=refusal,
        )

    def remove_dataset(self, dataset_id: int) -> Removal:
        """Delete a dataset, and return what that did.

        Raises:
            SlidepackError: DATA-NOT-FOUND, DATA-IN-USE.
        """
        with self._db.transaction():
            removal = self.of_dataset(dataset_id)
            if removal.refusal is not None:
                raise SlidepackError.from_report(removal.refusal)
            self._catalogue.drop_dataset(dataset_id)
        # What refuses here goes at the next start.
        shutil.rmtree(self._paths.dataset(dataset_id), ignore_errors=True)
        self._changes.bump()
        return removal


def disk_bytes(*folders: Path) -> int:
    """Return what deleting folders gives back: files that have a name elsewhere stay."""
    seen: dict[tuple[int, int], tuple[int, int, int]] = {}
    for directory, _, names in itertools.chain.from_iterable(map(os.walk, folders)):
        for name in names:
            try:
                found = os.lstat(os.path.join(directory, name))
            except FileNotFoundError:
                continue
            key = (found.st_dev, found.st_ino)
            links = seen.get(key, (0, 0, 0))[0] + 1
            seen[key] = links, found.st_nlink, found.st_blocks * _BLOCK_BYTES
    return sum(size for here, links, size in seen.values() if here == links)


def _dataset_refusal(dataset_id: int, uses: list[Use]) -> ErrorReport | None:
    needing = [use.job_id for use in uses if not use.ended]
    if not needing:
        return None
    return SlidepackError(
        "DATA-IN-USE",
        f"Dataset {dataset_id} is in use.",
        why=f"{counted_jobs(needing)} not ended",
        fix="Cancel them first, or wait until they are done.",
    ).report


def _list(job_ids: list[int]) -> str:
    return counted_jobs(job_ids).rpartition(" ")[0]
