"""What a run left that another job can go on from, found and named without torch.

The daemon and `slidepack train` ask here; the worker checks again what it is given.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import (
    ContinueRef,
    FullMethod,
    JobSpec,
    LoraMethod,
    OriginKind,
    Taken,
    TrainedRows,
)
from slidepack.engine.contract.lineage import fixed_part, held_out_loss_is_comparable, misfits
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.importer.fingerprint import content_hash

__all__ = [
    "SHOWN_MISFITS",
    "Left",
    "find_left",
    "keep_moments",
    "origin_broken",
    "origin_of",
    "require_fit",
]

SHOWN_MISFITS: Final = 4


class _State(msgspec.Struct, frozen=True):
    """The part of a checkpoint's `state.json` that matters here; the worker reads all of it."""

    step: int
    tensors_hash: str
    eval_loss_before: float | None = None
    healthy: bool = True


class _Summary(msgspec.Struct, frozen=True):
    """The part of a result's `summary.json` that matters here."""

    steps: int
    eval_loss_before: float | None = None


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What a run left."""

    kind: OriginKind
    path: Path
    step: int
    """Steps behind it."""
    digest: str
    """Of a checkpoint; "" of a result, which has to be read for it."""
    loss_before: float | None
    """Held-out loss before the run's first step; None where none was measured."""


def find_left(attempts: Sequence[RunFolder]) -> Left | None:
    """Return the best that a run left, or None.

    That is the checkpoint of its last step, which has the optimizer's state too, else its result,
    else the newest checkpoint that was made in good health.

    Args:
        attempts: the run folders of one job, oldest first.

    Raises:
        OSError: the disk does not tell.
    """
    checkpoint = next(_healthy(attempts), None)
    result = next((found for one in reversed(attempts) if (found := _result(one))), None)
    if result is None or (checkpoint is not None and checkpoint.step == result.step):
        return checkpoint
    return result


def _healthy(attempts: Sequence[RunFolder]) -> Iterator[Left]:
    for folder in reversed(attempts):
        for path in folder.list_checkpoints():
            try:
                state = msgspec.json.decode((path / "state.json").read_bytes(), type=_State)
            except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
                continue
            if state.healthy:
                yield Left(
                    kind="checkpoint",
                    path=path,
                    step=state.step,
                    digest=state.tensors_hash,
                    loss_before=state.eval_loss_before,
                )


def _result(folder: RunFolder) -> Left | None:
    try:
        data = (folder.result / "summary.json").read_bytes()
        summary = msgspec.json.decode(data, type=_Summary)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
    kinds: tuple[OriginKind, ...] = ("adapter", "model")
    for kind in kinds:
        if (folder.result / kind).is_dir():
            return Left(
                kind=kind,
                path=folder.result / kind,
                step=summary.steps,
                digest="",
                loss_before=summary.eval_loss_before,
            )
    return None


def origin_of(
    left: Left | None, parent: JobSpec, job: str, *, weights_only: bool = False
) -> ContinueRef:
    """Return what a job goes on from, pinned by content; a whole model is read for that.

    Args:
        left: by the job that is continued.
        parent: its specification.
        job: its number or name.
        weights_only: AdamW's moments begin at 0, though there are some.

    Raises:
        SlidepackError: RUN-NO-CHECKPOINT: it left nothing. RUN-ORIGIN-BROKEN: that cannot be read.
    """
    if left is None:
        raise SlidepackError(
            "RUN-NO-CHECKPOINT",
            f"Job {job} left nothing to go on from.",
            why="it has no result, and no checkpoint that was made in good health",
            fix="Retry it from the start.",
        )
    taken: Taken = "state" if left.kind == "checkpoint" and not weights_only else "weights"
    before = parent.continues
    base_loss = left.loss_before if before is None else before.base_loss
    return ContinueRef(
        job=job,
        path=str(left.path.absolute()),
        kind=left.kind,
        digest=_digest(left, job),
        step=left.step,
        taken=taken,
        trained_on=((*before.trained_on, _rows_of(parent)) if before else (_rows_of(parent),)),
        base_loss=base_loss,
    )


def _digest(left: Left, job: str) -> str:
    try:
        match left.kind:
            case "checkpoint":
                return left.digest
            case "adapter":
                with (left.path / "adapter_model.safetensors").open("rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            case "model":
                return content_hash(left.path)
    except OSError as error:
        raise _broken(job, left.path, error) from error


def origin_broken(origin: ContinueRef, error: OSError | ValueError) -> SlidepackError:
    """Return the coded error of an origin that is missing, changed or damaged."""
    return _broken(origin.job, Path(origin.path), error)


def _broken(job: str, path: Path, error: OSError | ValueError) -> SlidepackError:
    why = error.strerror if isinstance(error, OSError) else str(error)
    return SlidepackError(
        "RUN-ORIGIN-BROKEN",
        f"What job {job} left cannot be gone on from.",
        why=f"{path}: {why}",
        fix=f"Continue job {job} anew, or retry it from the start.",
    )


def _rows_of(spec: JobSpec) -> TrainedRows:
    held = spec.eval
    return TrainedRows(
        dataset=spec.dataset,
        split_seed=spec.seed if held.split_seed is None else held.split_seed,
        selection_fraction=0.0 if held.selection is not None else held.selection_fraction,
        test_fraction=held.test_fraction,
    )


def require_fit(parent: JobSpec, child: JobSpec) -> JobSpec:
    """Check that one job can continue another; return it with what is known of the base's loss.

    Raises:
        SlidepackError: RUN-CHECKPOINT-OTHER-JOB.
    """
    reasons = misfits(fixed_part(parent), fixed_part(child))
    if reasons:
        more = len(reasons) - SHOWN_MISFITS
        rest = f"; and {more} more" if more > 0 else ""
        raise SlidepackError(
            "RUN-CHECKPOINT-OTHER-JOB",
            "The job cannot go on from that one: it does not fit.",
            why="; ".join(reasons[:SHOWN_MISFITS]) + rest,
            fix="Leave these as they were. Learning rate, schedule, length, data, batch, dropout "
            "and seed may change.",
        )
    if child.continues is None or held_out_loss_is_comparable(parent, child):
        return child
    unknown = msgspec.structs.replace(child.continues, base_loss=None)
    return msgspec.structs.replace(child, continues=unknown)


def keep_moments(method: LoraMethod | FullMethod, left: Left) -> LoraMethod | FullMethod:
    """Return a method that stores moments as those are stored that it takes over.

    Left to itself, a full fine-tuning chooses the form by the memory that is there.

    Raises:
        SlidepackError: RUN-FOLDER-BROKEN.
    """
    if not isinstance(method, FullMethod) or left.kind != "checkpoint" or method.moments != "auto":
        return method
    full = RunFolder(left.path.parents[1]).read_plan().full
    return method if full is None else msgspec.structs.replace(method, moments=full.moments)
