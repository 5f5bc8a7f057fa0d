"""Exports as the daemon keeps them: made in folders of their own, there until they are deleted."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from slidepack.daemon.changes import Changes
from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.exports.folders import ExportFolders
from slidepack.daemon.exports.record import ExportRecord, ExportWanted, RemovedExport
from slidepack.daemon.exports.runner import ExportRunner
from slidepack.daemon.exports.source import ExportOffer, Sources, offers
from slidepack.daemon.exports.store import ExportStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.supervisor.discarding import Discarder, aside_of
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["Exports"]


class Exports:
    """Commands of users; `runner` carries them out."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        folder: Path,
        room: DiskRoom,
        changes: Changes,
        training: Callable[[], bool],
    ) -> None:
        """Bind the stores; nothing is started.

        Args:
            database: for transactions over several stores.
            jobs: the queue.
            folder: of all exports; nothing outside it is ever deleted.
            room: on its disk.
            changes: told about every change.
            training: says whether a run needs the processor.
        """
        self._db = database
        self._folders = ExportFolders(folder)
        self._store = ExportStore(database, self._folders)
        self._sources = Sources(jobs, room, folder)
        self._discarder = Discarder(folder)
        self._changes = changes
        self.runner = ExportRunner(
            store=self._store,
            sources=self._sources,
            folders=self._folders,
            changes=changes,
            training=training,
        )

    def add(self, job_id: int, wanted: ExportWanted) -> ExportRecord:
        """Queue an export of a completed job; the same one, not ended yet, is not made twice.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-NO-RESULT, EXPORT-INVALID, DISK-FULL, and why a
                model cannot be written in this form.
        """
        wanted = wanted.checked()
        with self._db.transaction():
            # One transaction, so that nobody deletes the job in between.
            source = self._sources.of(job_id)
            self._sources.require_room(source, wanted)
            found = self._store.add(job_id, source.name, wanted, time.time())
        self._changes.bump()
        return found

    def offers(self, job_id: int) -> list[ExportOffer]:
        """Return the forms that a job's result can be exported in; empty where it has none.

        Raises:
            SlidepackError: RUN-NOT-FOUND.
        """
        try:
            return offers(self._sources.of(job_id))
        except SlidepackError as error:
            if error.report.code == "RUN-NO-RESULT":
                return []
            raise

    def get(self, export_id: int) -> ExportRecord:
        """Return an export, with how far it is.

        Raises:
            SlidepackError: EXPORT-NOT-FOUND.
        """
        return self._with_progress(self._store.get(export_id))

    def list_exports(self) -> list[ExportRecord]:
        """Return all exports, newest first."""
        return [self._with_progress(record) for record in self._store.list_exports()]

    def of_job(self, job_id: int) -> list[ExportRecord]:
        """Return the exports of a job, newest first, whether or not it is still there."""
        return [self._with_progress(record) for record in self._store.of_job(job_id)]

    def count_unended(self) -> int:
        """Return how many wait or run."""
        return len(self._store.unended())

    def cancel(self, export_id: int) -> ExportRecord:
        """End an export; nothing of it is kept.

        Raises:
            SlidepackError: EXPORT-NOT-FOUND, EXPORT-STATE where it has ended.
        """
        self._store.cancel(export_id, time.time())
        self._changes.bump()
        return self.get(export_id)

    def remove(self, export_id: int) -> RemovedExport:
        """Delete an export that has ended, with its files.

        A download that has begun goes on to its end; the disk has the room again after it.

        Raises:
            SlidepackError: EXPORT-NOT-FOUND, EXPORT-STATE where it has not ended, DISK-UNWRITABLE.
        """
        home = self._folders.home(export_id)
        with self._db.transaction():
            found = self._store.get(export_id)
            if not found.ended:
                raise SlidepackError(
                    "EXPORT-STATE",
                    f"Export {export_id} cannot be deleted.",
                    why=f"it is {found.state}",
                    fix=f"`slidepack exports cancel {export_id}` ends it.",
                )
            if not self._discarder.put_aside([home]):
                raise SlidepackError(
                    "DISK-UNWRITABLE",
                    f"The files of export {export_id} cannot be deleted.",
                    why=str(home),
                    fix="The daemon's log says why; check the folder's owner and rights.",
                )
            self._store.remove(export_id)
        # What refuses stays under a name that nobody looks for, and goes at the next start.
        self._discarder.delete([aside_of(home)])
        self._changes.bump()
        return RemovedExport(removed=export_id, freed_bytes=found.bytes)

    def _with_progress(self, record: ExportRecord) -> ExportRecord:
        now = self.runner.progress_of(record.id)
        if record.ended or now is None:
            return record
        return msgspec.structs.replace(record, stage=now.stage, done=now.done, total=now.total)
