"""What a job has to export, and what each form of it would take."""

from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.exports.record import ExportWanted
from slidepack.daemon.paths import disk_error
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.export.contract import ExportRequest
from slidepack.engine.export.sizes import export_bytes

__all__ = ["ExportOffer", "Source", "Sources", "offers"]

_MARGIN: Final = 50
"""A fiftieth is kept for file systems' own needs."""
_OFFERED: Final = (
    ExportWanted(format="peft"),
    ExportWanted(format="merged"),
    ExportWanted(format="gguf", quant="f16"),
    ExportWanted(format="gguf", quant="q8_0"),
    ExportWanted(format="ollama", quant="q8_0"),
)


class ExportOffer(msgspec.Struct, frozen=True, kw_only=True):
    """A form that a job's result can be exported in."""

    wanted: ExportWanted
    bytes: int | None
    """What it takes on the disk, at most; None where it cannot be made."""
    problem: ErrorReport | None
    """Why it cannot be made."""


class Source:
    """The result of a completed job, and the base that it was trained on."""

    def __init__(self, job: JobRecord, spec: JobSpec) -> None:
        """Look at a job.

        Raises:
            SlidepackError: RUN-NO-RESULT: it is not completed, or its result is gone.
        """
        if job.state != "completed" or job.result is None or not Path(job.result).is_dir():
            gone = job.state == "completed"
            raise SlidepackError(
                "RUN-NO-RESULT",
                f"Job {job.id} has no result to export.",
                why=f"{job.result} is gone" if gone else f"it is {job.state}",
                fix="Run the job again." if gone else "Wait until it is completed.",
            )
        self._result = Path(job.result)
        self.name = job.name
        self._base = spec.base
        self.is_adapter = isinstance(spec.method, LoraMethod)

    def num_bytes(self, wanted: ExportWanted) -> int:
        """Return what an export takes on the disk, at most, with a margin.

        Raises:
            SlidepackError: why it cannot be made; DISK-UNWRITABLE where a file cannot be read.
        """
        base = Path(self._base.path) if self.is_adapter else None
        try:
            found = export_bytes(
                self._result,
                base,
                wanted.format,
                wanted.quant,
                adapter_only=wanted.adapter_only,
            )
        except OSError as error:
            raise disk_error(error, self._result) from error
        return found + found // _MARGIN

    def request(self, wanted: ExportWanted, target: Path) -> ExportRequest:
        """Return what the exporter is told."""
        return ExportRequest(
            result=str(self._result),
            base=self._base.path if self.is_adapter else "",
            base_hash=self._base.content_hash if self.is_adapter else "",
            target=str(target),
            format=wanted.format,
            quant=wanted.quant,
            adapter_only=wanted.adapter_only,
            verify=wanted.verify,
            hand_over=False,
            name=wanted.name or self.name,
        )


class Sources:
    """Finds what jobs have to export, and whether there is room for it."""

    def __init__(self, jobs: JobStore, room: DiskRoom, root: Path) -> None:
        """Bind the queue, and the folder of all exports with the room on its disk."""
        self._jobs = jobs
        self._room = room
        self._root = root

    def of(self, job_id: int) -> Source:
        """Return what a job has to export.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-NO-RESULT.
        """
        return Source(self._jobs.get(job_id), self._jobs.spec(job_id))

    def require_room(self, source: Source, wanted: ExportWanted) -> None:
        """Refuse what does not fit on the disk.

        Raises:
            SlidepackError: DISK-FULL, DISK-UNWRITABLE, and why it cannot be made.
        """
        needed = source.num_bytes(wanted)
        try:
            why = self._room.shortage(needed)
        except OSError as error:
            raise disk_error(error, self._root) from error
        if why:
            raise SlidepackError(
                "DISK-FULL",
                "The disk has too little room for the export.",
                why=why,
                fix="Free some space, delete other exports, or export it as q8_0.",
            )


def offers(source: Source) -> list[ExportOffer]:
    """Return the forms that make sense for a result, with their sizes or why there is none."""
    return [
        _offer(source, wanted)
        for wanted in _OFFERED
        if source.is_adapter or wanted.format != "peft"
    ]


def _offer(source: Source, wanted: ExportWanted) -> ExportOffer:
    try:
        return ExportOffer(wanted=wanted, bytes=source.num_bytes(wanted), problem=None)
    except SlidepackError as error:
        return ExportOffer(wanted=wanted, bytes=None, problem=error.report)
