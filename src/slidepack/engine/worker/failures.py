"""Turns what a run died of into an error with a code."""

import errno

import torch

from slidepack.engine.contract.errors import SlidepackError

__all__ = ["coded"]


def coded(error: SlidepackError | torch.OutOfMemoryError | OSError) -> SlidepackError:
    """Return an error with a code for what a run may die of."""
    if isinstance(error, SlidepackError):
        return error
    if isinstance(error, torch.OutOfMemoryError):
        return SlidepackError(
            "GPU-OUT-OF-MEMORY",
            "The GPU ran out of memory.",
            why=" ".join(str(error).split())[:300],
            fix="Lower batch_size or max_seq_len, or close what else uses the GPU.",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return SlidepackError(
            "DISK-FULL",
            "The disk is full; the last checkpoint is kept.",
            why=str(error),
            fix="Free some space, then resume the job.",
        )
    return SlidepackError(
        "DISK-UNWRITABLE",
        "A file of the run could not be read or written.",
        why=str(error),
        fix="Check the disk and the rights of the data directory, then resume the job.",
    )
