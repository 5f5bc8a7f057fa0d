"""The attempts at a run of `slidepack train`: the disk room of the next, and what earlier ones
left that nothing will go on from."""

from collections.abc import Sequence
from pathlib import Path

from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.supervisor.discarding import Discarder, remains
from slidepack.daemon.supervisor.keeping import of_no_use, read_kept, replaceable_bytes
from slidepack.daemon.tier_room import TierRoom
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import KEPT, RunFolder

__all__ = ["Attempts", "require_room"]


class Attempts:
    """The run folders of one run; only the newest may have a worker."""

    def __init__(self, root: Path, oldest_first: Sequence[RunFolder]) -> None:
        """Bind the folders, all of them in `root`."""
        self._root = root
        self._folders = list(oldest_first)
        self._discarder = Discarder(root)

    def tidy(self, *, complete: bool = False) -> None:
        """Delete checkpoints of earlier attempts that are of no use, and what was half written.

        The newest attempt needs those before it until it has a checkpoint of its own; its own are
        never touched. What the disk refuses to delete is logged and stays.

        Args:
            complete: the run has its result; only another run may go on from it.
        """
        *earlier, newest = self._folders
        try:
            if not complete and not newest.list_checkpoints():
                return
            found = of_no_use(read_kept(self._folders), newest=1 if complete else KEPT)
            self._discarder.put_aside(path for path in found if path.parent != newest.checkpoints)
            left = [path for folder in earlier for path in remains(folder.checkpoints)]
        except OSError as error:
            self._discarder.refused(self._root, error)
        else:
            self._discarder.delete(left)


def require_room(plan: RunPlan, spec: JobSpec, root: Path, earlier: Sequence[RunFolder]) -> None:
    """Refuse a run whose checkpoints and result do not fit, before its first step.

    Args:
        plan: of the next attempt.
        spec: of the run.
        root: its folder.
        earlier: attempts, oldest first.

    Raises:
        SlidepackError: DISK-FULL.
        OSError: a disk does not answer.
    """
    shortage = TierRoom(root, DiskRoom(root, 0)).shortage(plan, spec, replaceable_bytes(earlier))
    if shortage:
        raise SlidepackError(
            "DISK-FULL",
            "The disk has no room for the run's checkpoints and its result.",
            why=f"{root}: {shortage}",
            fix="Free some space, then run the same command.",
        )
