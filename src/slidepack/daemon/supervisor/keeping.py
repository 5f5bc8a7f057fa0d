"""Which checkpoints of a job are still of use. It reads and never deletes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from slidepack.engine.contract.runfolder import KEPT, RunFolder

_STATE: Final = "state.json"


class _Health(msgspec.Struct, frozen=True):
    """The part of a checkpoint's `state.json` that decides; the worker writes and reads the rest.

    Checkpoints of older versions do not say; they count as healthy.
    """

    healthy: bool = True


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint, as far as keeping it is concerned."""

    path: Path
    sound: bool
    """Whether it could be gone on from, as far as its `state.json` tells."""
    healthy: bool


def read_kept(attempts: Sequence[RunFolder]) -> list[Kept]:
    """Return the finished checkpoints of a job, newest first, as a resumed run tries them.

    Args:
        attempts: the run folders, oldest first.

    Raises:
        OSError: the disk does not tell; nothing may be concluded from that.
    """
    return [
        _read(checkpoint)
        for folder in reversed(attempts)
        for checkpoint in folder.list_checkpoints()
    ]


def of_no_use(checkpoints: Sequence[Kept], newest: int) -> list[Path]:
    """Return the checkpoints that nothing will go on from.

    The newest ones stay, and the newest healthy one: from that a job goes on after a divergence.

    Args:
        checkpoints: of one job, newest first.
        newest: how many of the newest stay.
    """
    sound = [checkpoint for checkpoint in checkpoints if checkpoint.sound]
    kept = sound[:newest] + [checkpoint for checkpoint in sound if checkpoint.healthy][:1]
    return [checkpoint.path for checkpoint in checkpoints if checkpoint not in kept]


def replaceable_bytes(attempts: Sequence[RunFolder]) -> int:
    """Return the bytes of the checkpoints that a job's next ones replace one by one.

    Args:
        attempts: the run folders, oldest first.

    Raises:
        OSError: the disk does not tell.
    """
    return sum(
        path.stat().st_size for kept in read_kept(attempts)[:KEPT] for path in kept.path.iterdir()
    )


def _read(checkpoint: Path) -> Kept:
    try:
        state = msgspec.json.decode((checkpoint / _STATE).read_bytes(), type=_Health)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return Kept(checkpoint, sound=False, healthy=False)
    return Kept(checkpoint, sound=True, healthy=state.healthy)
