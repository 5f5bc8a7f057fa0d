"""What the API and the page read of a job: its details, charts, log and result."""

import os
import secrets
import zipfile
from pathlib import Path
from typing import Any, Final

import msgspec

from slidepack.daemon.paths import disk_error
from slidepack.daemon.service import Service
from slidepack.daemon.store.attempts import AttemptRecord
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.series import Series, SeriesStore
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.judgement import JudgeReport
from slidepack.engine.contract.runfolder import RunFolder

_MAX_LOG_BYTES: Final = 256 << 10
_MOST_CHECKPOINTS: Final = 40
"""Told of a job, the newest."""


class JobDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one job."""

    job: JobRecord
    spec: JobSpec
    attempts: list[AttemptRecord]
    transitions: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    warnings: list[dict[str, Any]]
    judgement: JudgeReport | None = None
    """How the model compares with its base; None where nothing was measured yet."""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A job's series by step, all of it."""

    progress: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]


class ThinChart(msgspec.Struct, frozen=True, kw_only=True):
    """A job's series, thinned out to what a chart can show; no extreme is left out."""

    total_steps: int
    series: Series
    evaluations: list[dict[str, Any]]
    """Of the same range."""


class CheckpointRow(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a job has written."""

    step: int
    at: float
    """When, in unix seconds."""
    reason: str
    healthy: bool
    """Whether losses and norms were numbers and as usual, so that another job may go on from it."""
    seconds: float
    """That writing it took."""
    num_bytes: int | None
    """On disk; None where it was deleted, as most are once there is a newer one."""


def job_detail(service: Service, job_id: int) -> JobDetail:
    """Gather everything about a job.

    Raises:
        SlidepackError: RUN-NOT-FOUND.
    """
    return JobDetail(
        job=service.jobs.get(job_id),
        spec=service.jobs.spec(job_id),
        attempts=service.attempts.of(job_id),
        transitions=service.jobs.transitions(job_id),
        evaluations=service.runlog.evaluations(job_id),
        samples=service.runlog.samples(job_id),
        warnings=service.runlog.warnings(job_id),
        judgement=service.runlog.judgement(job_id),
    )


def chart(service: Service, job_id: int) -> Chart:
    """Gather a job's series.

    Raises:
        SlidepackError: RUN-NOT-FOUND.
    """
    service.jobs.get(job_id)
    return Chart(
        progress=service.runlog.progress(job_id), evaluations=service.runlog.evaluations(job_id)
    )


def thin_chart(
    service: Service, job_id: int, begin: int | None, end: int | None, points: int
) -> ThinChart:
    """Return a job's series in about `points` points from step `begin` to step `end`.

    Raises:
        SlidepackError: RUN-NOT-FOUND.
    """
    job = service.jobs.get(job_id)
    held = [
        row
        for row in service.runlog.evaluations(job_id)
        if (begin is None or row["step"] >= begin) and (end is None or row["step"] <= end)
    ]
    by_split = [[row for row in held if row["split"] == split] for split in ("selection", "test")]
    return ThinChart(
        total_steps=job.total_steps,
        series=SeriesStore(service.database).read(job_id, begin, end, points),
        evaluations=[row for rows in by_split for row in thin_evaluations(rows, points)],
    )


def thin_evaluations(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return about `most` of the evaluations of one split: ends, and lowest and highest of parts.

    Args:
        rows: by step.
        most: 4 or more.
    """
    if len(rows) <= most:
        return rows
    width = -(-(len(rows) - 2) // ((most - 2) // 2))
    kept = {0, len(rows) - 1}
    for low in range(1, len(rows) - 1, width):
        part = range(low, min(low + width, len(rows) - 1))
        known = [place for place in part if rows[place]["loss"] is not None]
        if known:
            kept.add(min(known, key=lambda place: rows[place]["loss"]))
            kept.add(max(known, key=lambda place: rows[place]["loss"]))
        else:
            kept.add(part[0])
    return [rows[place] for place in sorted(kept)]


def checkpoint_rows(service: Service, job_id: int) -> list[CheckpointRow]:
    """Return the newest checkpoints of a job, newest first.

    Raises:
        SlidepackError: RUN-NOT-FOUND.
    """
    service.jobs.get(job_id)
    return [
        CheckpointRow(
            step=event.step,
            at=event.at,
            reason=event.reason,
            healthy=event.healthy,
            seconds=event.seconds,
            num_bytes=_bytes_in(Path(event.path)),
        )
        for event in service.runlog.checkpoints(job_id, _MOST_CHECKPOINTS)
    ]


def _bytes_in(folder: Path) -> int | None:
    """Return what a checkpoint's files take; None where it is gone, or goes at this moment."""
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except OSError:
        return None


def log_tail(service: Service, job_id: int, most_bytes: int = _MAX_LOG_BYTES) -> str:
    """Return the end of the logs of all attempts, oldest first.

    What lies before the last `most_bytes` bytes is left out, whole attempts too.

    Raises:
        SlidepackError: RUN-NOT-FOUND.
    """
    service.jobs.get(job_id)
    texts: list[str] = []
    left = most_bytes
    for attempt in reversed(service.attempts.of(job_id)):
        if left <= 0:
            break
        text = f"--- attempt {attempt.number} ({attempt.state}) ---\n"
        try:
            data, size = _end_of(RunFolder(Path(attempt.folder)).log, left)
            text += data.decode("utf-8", "replace")
            left -= size
        except FileNotFoundError:
            # It has not begun to write, or its folder was deleted.
            pass
        except OSError as error:
            text += f"Its log cannot be read: {error.strerror}."
        texts.append(text)
    return "\n".join(reversed(texts))


def _end_of(path: Path, most_bytes: int) -> tuple[bytes, int]:
    """Return the end of a file, from the start of a line where one starts in it, and its size."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - most_bytes)
        file.seek(begin)
        # Not to the end: a worker may write faster than this reads.
        data = file.read(size - begin)
    lines = data.partition(b"\n")[2] if begin else data
    return lines or data, size


def adapter_zip(service: Service, job_id: int) -> Path:
    """Return the result's adapter folder as a zip file, made on the first call.

    Raises:
        SlidepackError: RUN-NOT-FOUND, RUN-NO-RESULT, DISK-FULL.
    """
    job = service.jobs.get(job_id)
    if job.state != "completed" or job.result is None:
        raise SlidepackError(
            "RUN-NO-RESULT",
            f"Job {job_id} has no adapter yet.",
            why=f"it is {job.state}",
            fix="Wait until it is completed.",
        )
    folder = Path(job.result) / "adapter"
    if not folder.is_dir():
        raise SlidepackError(
            "RUN-NO-RESULT",
            f"Job {job_id} has no adapter: it trained the whole model.",
            why=f"its result is {Path(job.result) / 'model'}",
            fix="Use that folder as it is.",
        )
    target = Path(job.result) / "adapter.zip"
    if not target.exists():
        _zip_adapter(folder, target)
    return target


def _zip_adapter(folder: Path, target: Path) -> None:
    # Two downloads may begin at once; each writes a file of its own, and the last rename stays.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        # The weights are noise to a compressor, so they are stored as they are.
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, f"{folder.name}/{path.name}")
        temporary.rename(target)
    except OSError as error:
        raise disk_error(error, target) from error
    finally:
        temporary.unlink(missing_ok=True)
