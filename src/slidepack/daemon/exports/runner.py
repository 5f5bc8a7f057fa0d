"""Carries out exports: one exporter at a time, followed, stopped, and made up for after a crash."""

import logging
import os
import secrets
import time
from collections.abc import Callable
from typing import Final

import psutil

from slidepack.daemon.changes import Changes
from slidepack.daemon.exports.folders import ExportFolders
from slidepack.daemon.exports.process import ExportProcess, end_orphan, start_export
from slidepack.daemon.exports.source import Sources
from slidepack.daemon.exports.store import ExportStore
from slidepack.daemon.paths import disk_error
from slidepack.daemon.supervisor.discarding import Discarder
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.export.contract import ExportFailed, ExportProgress, ExportResult

__all__ = ["ExportRunner"]

logger = logging.getLogger(__name__)

_STOP_SECONDS: Final = 30.0
"""It removes what it has made, which may be many gigabytes, before it is gone."""
_MOST_STARTS: Final = 3
"""After so many starts that ended with their daemon or machine, an export is given up."""
_SHARE_BESIDE_TRAINING: Final = 4
"""An export beside a run takes one core of so many."""


class ExportRunner:
    """Owns the exporter that runs. `tick` belongs to one thread."""

    def __init__(
        self,
        *,
        store: ExportStore,
        sources: Sources,
        folders: ExportFolders,
        changes: Changes,
        training: Callable[[], bool],
    ) -> None:
        """Bind the parts; nothing is started.

        Args:
            store: the exports.
            sources: what jobs have to export.
            folders: where exports are made.
            changes: told about every change.
            training: says whether a run needs the processor.
        """
        self._store = store
        self._sources = sources
        self._folders = folders
        self._discarder = Discarder(folders.root)
        self._changes = changes
        self._training = training
        self._running: tuple[int, ExportProcess] | None = None
        self._shown: ExportProgress | None = None

    def progress_of(self, export_id: int) -> ExportProgress | None:
        """Return how far an export is; None where it does not run, or has said nothing yet."""
        running = self._running
        return running[1].progress if running is not None and running[0] == export_id else None

    def recover(self) -> None:
        """After a start: end the exporters of a daemon that died, and let their exports run anew.

        Raises:
            SlidepackError: the database does not answer.
        """
        for export_id, nonce in self._store.running_nonces().items():
            try:
                end_orphan(nonce)
            except psutil.TimeoutExpired:
                logger.warning("the exporter of export %d does not end", export_id)
            self._folders.clear(export_id)
            if self._store.is_cancelling(export_id):
                self._store.end(export_id, "cancelled", time.time())
            elif self._store.starts(export_id) >= _MOST_STARTS:
                self._fail(export_id, _given_up(export_id))
            else:
                self._store.queue_again(export_id, counts=True)
        self._drop_strays()

    def tick(self) -> None:
        """Follow the exporter that runs, or start what waits."""
        if self._running is None:
            self._start_next()
            return
        export_id, process = self._running
        if self._store.is_cancelling(export_id):
            process.ask_to_leave(_STOP_SECONDS)
        ended = process.has_ended()
        if ended:
            self._settle(export_id, process)
            self._running = None
        if ended or process.progress != self._shown:
            self._shown = process.progress
            self._changes.bump()

    def stop(self) -> None:
        """End the exporter; its export starts anew with the next daemon."""
        if self._running is None:
            return
        export_id, process = self._running
        process.stop(_STOP_SECONDS)
        if isinstance(process.outcome, ExportResult) or self._store.is_cancelling(export_id):
            self._settle(export_id, process)
        else:
            self._folders.clear(export_id)
            self._store.queue_again(export_id, counts=False)
        self._running = None

    def _start_next(self) -> None:
        waiting = self._store.unended()
        if not waiting:
            return
        export = waiting[0]
        if export.state == "running":
            # A round that failed in the middle of a start left it so; the log has what happened.
            self._fail(export.id, _died(export.id, "it could not be started"))
            return
        nonce = secrets.token_hex(16)
        if not self._store.begin(export.id, nonce, time.time()):
            return
        home = self._folders.home(export.id)
        try:
            source = self._sources.of(export.job_id)
            self._sources.require_room(source, export.wanted)
            request = source.request(export.wanted, self._folders.files(export.id))
            self._folders.clear(export.id)
            home.mkdir(parents=True, mode=0o700)
            process = start_export(home, request, nonce, self._threads())
        except SlidepackError as error:
            self._fail(export.id, error.report)
        except OSError as error:
            self._fail(export.id, disk_error(error, home).report)
        else:
            self._running = export.id, process
        self._changes.bump()

    def _threads(self) -> int | None:
        if not self._training():
            return None
        return max(1, len(os.sched_getaffinity(0)) // _SHARE_BESIDE_TRAINING)

    def _settle(self, export_id: int, process: ExportProcess) -> None:
        outcome, now = process.outcome, time.time()
        if isinstance(outcome, ExportResult):
            self._store.end(
                export_id,
                "done",
                now,
                result=outcome,
                verification=outcome.verification,
                num_bytes=self._folders.num_bytes(export_id),
            )
        elif self._store.is_cancelling(export_id):
            self._folders.clear(export_id)
            self._store.end(export_id, "cancelled", now)
        elif self._was_interrupted(export_id, process):
            # The machine goes down, most likely, and tells every process at once.
            self._folders.clear(export_id)
            self._store.queue_again(export_id, counts=True)
        elif isinstance(outcome, ExportFailed):
            self._fail(export_id, outcome.error, outcome)
        else:
            self._fail(export_id, _died(export_id, process.how_it_died()))

    def _was_interrupted(self, export_id: int, process: ExportProcess) -> bool:
        outcome = process.outcome
        told = isinstance(outcome, ExportFailed) and outcome.error.code == "RUN-INTERRUPTED"
        return told and self._store.starts(export_id) < _MOST_STARTS

    def _fail(
        self, export_id: int, error: ErrorReport, outcome: ExportFailed | None = None
    ) -> None:
        self._folders.keep_evidence(export_id)
        self._store.end(
            export_id,
            "failed",
            time.time(),
            error=error,
            verification=None if outcome is None else outcome.verification,
            num_bytes=self._folders.num_bytes(export_id),
        )

    def _drop_strays(self) -> None:
        """Delete folders of exports that nobody knows: what a dead daemon was about to delete."""
        self._discarder.delete(self._folders.strays(self._store.ids()))


def _died(export_id: int, how: str) -> ErrorReport:
    return ErrorReport(
        code="RUN-CRASHED",
        what="The exporter's process died; nothing of the export was kept.",
        why=f"export {export_id}: {how}",
        fix="Make the export again; if it dies once more, run `slidepack doctor`.",
    )


def _given_up(export_id: int) -> ErrorReport:
    return ErrorReport(
        code="RUN-CRASHED",
        what="The export never came to its end.",
        why=f"export {export_id} was started {_MOST_STARTS} times, and each time the daemon or the "
        "machine went down with it",
        fix="Look for what stopped them, then make the export again.",
    )
