"""The pack folder: one worker for many LoRA lanes over one base, each with a run folder of its own.

The lanes' run folders hold what a run of its own has (`engine.contract.runfolder`): their events,
checkpoints and results do not tell who shared the passes. The pack's own events say who joined and
left; its control file takes commands while it runs.
"""

from pathlib import Path

from slidepack.engine.contract.job import Frozen, ModelRef
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import (
    RunIdentity,
    fsync_folder,
    read_struct,
    write_structs,
)

__all__ = ["LaneRef", "PackFolder", "PackSpec"]


class LaneRef(Frozen, frozen=True, kw_only=True):
    """A lane, by its run folder."""

    lane: str
    """Its name in the pack, unique there; the job's id."""
    folder: str
    """Absolute path of its run folder."""
    priority: int = 0
    """Of those that wait, the highest joins first; of those that run, the lowest is the first to
    make room."""


class PackSpec(Frozen, frozen=True, kw_only=True):
    """What a pack begins with."""

    base: ModelRef
    """The frozen base of every lane."""
    lanes: tuple[LaneRef, ...]
    """In the order in which they join."""
    max_lanes: int = 0
    """Most lanes in one pass; the others wait for a seat. 0 leaves it to the memory."""
    exact: bool = False
    """Fill every row up to the same number of tokens, so that a lane's results do not depend on
    who is in the pack by a single bit. It costs the padding's time."""

    def __post_init__(self) -> None:
        """Refuse what cannot be told apart."""
        names = [lane.lane for lane in self.lanes]
        if len(set(names)) != len(names):
            raise ValueError(f"lanes {names} are not all different")
        if self.max_lanes < 0:
            raise ValueError(f"max_lanes is {self.max_lanes}; use 0 or more")


class PackFolder:
    """Names and reads the files of a pack folder."""

    def __init__(self, root: Path) -> None:
        """Wrap the folder `root`; nothing is created."""
        self.root = root
        self.pack = root / "pack.json"
        self.plan = root / "plan.json"
        self.identity = root / "run.json"
        self.lock = root / "worker.lock"
        self.events = root / "events.jsonl"
        self.control = root / "control.jsonl"
        self.log = root / "worker.log"

    def create(self, spec: PackSpec, plan: RunPlan, identity: RunIdentity) -> None:
        """Create the folder and its input files, durably.

        Raises:
            OSError: the disk refused.
        """
        self.root.mkdir(parents=True)
        write_structs({self.pack: spec, self.plan: plan, self.identity: identity})
        fsync_folder(self.root.parent)

    def read_pack(self) -> PackSpec:
        """Return the specification."""
        return read_struct(self.pack, PackSpec)

    def read_plan(self) -> RunPlan:
        """Return the plan of the passes."""
        return read_struct(self.plan, RunPlan)
