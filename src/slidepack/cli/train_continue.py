"""What a training file continues: a run that `slidepack train` has made in another folder."""

from pathlib import Path

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.origins import find_left, keep_moments, origin_of, require_fit

__all__ = ["continue_run"]


def continue_run(spec: JobSpec, source: Path, *, weights_only: bool) -> JobSpec:
    """Return a specification that begins with what another run left.

    Where it does not say by which seed rows are held out, it holds out the same as that run.

    Args:
        spec: that begins with the base.
        source: the other run's folder, or that of one of its attempts.
        weights_only: AdamW's moments begin anew.

    Raises:
        SlidepackError: RUN-NOT-FOUND, RUN-NO-CHECKPOINT, RUN-CHECKPOINT-OTHER-JOB,
            RUN-ORIGIN-BROKEN or RUN-FOLDER-BROKEN.
        OSError: the disk does not tell.
    """
    attempts = _attempts(source)
    if not attempts:
        raise SlidepackError(
            "RUN-NOT-FOUND",
            "There is no run to continue.",
            why=f"{source} holds no attempt of `slidepack train`",
            fix="Name the folder that is `out` in that run's training file.",
        )
    parent, left = attempts[-1].read_spec(), find_left(attempts)
    origin = origin_of(left, parent, parent.name, weights_only=weights_only)
    method, held = spec.method, spec.eval
    if left is not None and origin.taken == "state":
        method = keep_moments(method, left)
    if held.split_seed is None:
        seed = parent.seed if parent.eval.split_seed is None else parent.eval.split_seed
        held = msgspec.structs.replace(held, split_seed=seed)
    try:
        # A struct's `replace` checks nothing.
        changed = {"continues": origin, "method": method, "eval": held}
        child = JobSpec(**msgspec.structs.asdict(spec) | changed)
    except ValueError as error:
        raise SlidepackError(
            "RUN-CHECKPOINT-OTHER-JOB",
            "The run cannot go on from that one: it does not fit.",
            why=f"{origin.path}: {error}",
            fix="Name the method that it was trained with.",
        ) from error
    return require_fit(parent, child)


def _attempts(source: Path) -> list[RunFolder]:
    """Return the attempts in a run's folder, oldest first; one that was never finished is none."""
    folders = [source] if (source / "run.json").exists() else sorted(source.glob("attempt-*"))
    return [folder for path in folders if (folder := RunFolder(path)).identity.exists()]
