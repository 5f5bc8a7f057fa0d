"""Packs of LoRA lanes on disk: their folders, the worker on them, and what is exact of a lane."""

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from slidepack.engine.contract.control import ControlCommand, encode_command
from slidepack.engine.contract.events import (
    AnyEvent,
    Checkpointed,
    ControlDone,
    Evaluated,
    Failed,
    LaneJoined,
    LaneLeft,
    Progress,
    Yielded,
)
from slidepack.engine.contract.job import EvalSpec, JobSpec, LoraMethod, OptimSpec
from slidepack.engine.contract.pack import LaneRef, PackFolder, PackSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder, RunIdentity
from slidepack.engine.memory_lora import plan_lanes
from slidepack.engine.shape import read_shape
from slidepack.engine.worker.__main__ import main
from support.full_worker import Worker, events_of, start
from support.runs import MACHINE, make_run, tiny_spec
from support.waiting import wait_until

_PASS_TOKENS: Final = 160
"""Three of the tiny rows: steps are cut, and lanes share passes."""
_OF_THE_CLOCK: Final = ("at", "pid", "seconds", "tokens_per_second", "eta_seconds")
_OF_THE_PLACE: Final = ("path", "result", "peak_host_bytes", "peak_device_bytes")


_JOBS: Final[Mapping[str, Mapping[str, Any]]] = {
    "a": {
        "method": LoraMethod(rank=4, alpha=8, targets=("q_proj", "k_proj", "up_proj")),
        "batch_size": 4,
        "steps": 8,
        "optim": OptimSpec(lr=2e-3),
    },
    "b": {
        "method": LoraMethod(rank=8, targets=("v_proj", "q_proj"), rslora=True),
        "batch_size": 2,
        "steps": 12,
        "optim": OptimSpec(lr=3e-3, weight_decay=0.1),
        "seed": 1,
        "eval": EvalSpec(test_fraction=0.2, sample_tokens=8),
    },
    "c": {
        "method": LoraMethod(rank=1, targets=("o_proj", "gate_proj", "down_proj")),
        "batch_size": 3,
        "steps": 5,
        "optim": OptimSpec(lr=1e-2, schedule="constant", clip_norm=0.1),
        "seed": 2,
        "max_seq_len": 100,
    },
}


def three_jobs(root: Path, *, dropout: float = 0.1, **changes: Any) -> dict[str, JobSpec]:
    """Return jobs `a`, `b` and `c`, that differ in everything in which lanes may differ.

    Args:
        root: where model and data are made.
        dropout: of `b`; it is slow on a CPU.
        changes: of all of them.
    """
    base = tiny_spec(root)
    jobs = {
        name: msgspec.structs.replace(base, **{"name": name, **job, **changes})
        for name, job in _JOBS.items()
    }
    method = msgspec.structs.replace(jobs["b"].method, dropout=dropout)
    return jobs | {"b": msgspec.structs.replace(jobs["b"], method=method)}


@dataclass(frozen=True)
class LaneRun:
    """What a lane's run folder says that may not depend on who shared its passes."""

    story: list[dict[str, Any]]
    """All its events in order, without times and places."""
    checkpoints: dict[str, bytes]
    """Tensors of those kept."""
    result: dict[str, bytes]
    """The adapter's files; none before its end."""


def pack_plan(specs: Sequence[JobSpec], tokens: int = _PASS_TOKENS) -> RunPlan:
    """Return the plan of lanes together, with passes of a few rows."""
    plan, _ = plan_lanes(specs, read_shape(Path(specs[0].base.path)), MACHINE)
    return msgspec.structs.replace(plan, micro_batch_tokens=tokens)


def lane_ref(run: RunFolder, priority: int = 0) -> LaneRef:
    """Name a lane by its run folder."""
    return LaneRef(lane=run.root.name, folder=str(run.root), priority=priority)


def make_pack(
    root: Path,
    lanes: Iterable[RunFolder | LaneRef],
    plan: RunPlan,
    *,
    max_lanes: int = 0,
    exact: bool = True,
) -> PackFolder:
    """Create a pack folder; its base is the first lane's."""
    refs = tuple(lane if isinstance(lane, LaneRef) else lane_ref(lane) for lane in lanes)
    base = RunFolder(Path(refs[0].folder)).read_spec().base
    pack = PackFolder(root)
    spec = PackSpec(base=base, lanes=refs, max_lanes=max_lanes, exact=exact)
    pack.create(spec, plan, RunIdentity(job_id="pack", attempt=1, nonce="n"))
    return pack


def make_lanes(root: Path, specs: Iterable[JobSpec]) -> dict[str, RunFolder]:
    """Create run folders below `root`, each named as its job."""
    return {spec.name: make_run(root / spec.name, spec) for spec in specs}


def resumed_lane(root: Path, *attempts: RunFolder) -> RunFolder:
    """Create a run folder that goes on from the checkpoints of earlier attempts."""
    found = [str(path) for one in reversed(attempts) for path in one.list_checkpoints()]
    spec = attempts[-1].read_spec()
    return make_run(root / spec.name, spec, attempt=len(attempts) + 1, resume_from=tuple(found))


def start_pack(pack: PackFolder, *, halt_at: int = 0) -> Worker:
    """Start a worker on a pack folder."""
    return start(RunFolder(pack.root), halt_at=halt_at)


def finish_pack(pack: PackFolder) -> None:
    """Run a worker to its end; it must succeed."""
    code = start_pack(pack).wait()
    assert code == 0, pack.log.read_text()


def run_here(pack: PackFolder) -> int:
    """Run a pack in this process, where its parts can be patched; return the exit code."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        return main([str(pack.root)])
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def alone(root: Path, specs: Iterable[JobSpec], plan: RunPlan) -> dict[str, RunFolder]:
    """Run each lane to its end in an exact pack of its own."""
    runs = make_lanes(root, specs)
    for name, run in runs.items():
        assert run_here(make_pack(root / f"pack-of-{name}", [run], plan)) == 0
    return runs


def pack_events(pack: PackFolder) -> list[AnyEvent]:
    """Return the pack's own events."""
    return events_of(RunFolder(pack.root))


def joined(pack: PackFolder) -> list[str]:
    """Return who took a seat, in order."""
    return [event.lane for event in pack_events(pack) if isinstance(event, LaneJoined)]


def left(pack: PackFolder) -> dict[str, str]:
    """Return why each lane left."""
    return {event.lane: event.reason for event in pack_events(pack) if isinstance(event, LaneLeft)}


def seats_taken(pack: PackFolder) -> list[set[str]]:
    """Return who was in the pass after each coming and going."""
    seats: list[set[str]] = [set()]
    for event in pack_events(pack):
        if isinstance(event, LaneJoined):
            seats.append(seats[-1] | {event.lane})
        elif isinstance(event, LaneLeft):
            seats.append(seats[-1] - {event.lane})
    return seats


def give(pack: PackFolder, *commands: ControlCommand) -> None:
    """Append commands to the control file, all at once."""
    with pack.control.open("ab") as file:
        file.write(b"".join(map(encode_command, commands)))


def answers(pack: PackFolder) -> dict[str, str]:
    """Return the outcome of every command that was carried out."""
    done = [event for event in pack_events(pack) if isinstance(event, ControlDone)]
    assert len({event.command_id for event in done}) == len(done), "each is answered once"
    return {event.command_id: event.outcome for event in done}


@dataclass
class PackAtWork:
    """A pack at work, and the commands that it is given; it does not outlive its test."""

    pack: PackFolder
    worker: Worker

    def __enter__(self) -> "PackAtWork":
        """Return the pack."""
        return self

    def __exit__(self, *_exc: object) -> None:
        """End the worker, if it still runs."""
        self.worker.send(signal.SIGKILL)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something that the worker does."""
        wait_until(lambda: self.worker.poll() is not None or condition(), what=what)
        assert self.worker.poll() is None, self.pack.log.read_text()

    def has_steps(self, run: RunFolder, count: int = 1) -> None:
        """Wait until a lane has made some steps more."""
        goal = steps_done(run) + count
        self.until(lambda: steps_done(run) >= goal, f"{run.root.name} has {goal} steps")

    def ask(self, *commands: ControlCommand) -> list[str]:
        """Give commands and return their outcomes."""
        names = [command.command_id for command in commands]
        give(self.pack, *commands)
        self.until(lambda: set(names) <= set(answers(self.pack)), f"{names} are answered")
        return [answers(self.pack)[name] for name in names]


def steps_done(run: RunFolder) -> int:
    """Return the last step that a lane reported."""
    return max((e.step for e in events_of(run) if isinstance(e, Progress)), default=0)


def checkpointed(run: RunFolder) -> list[tuple[int, str]]:
    """Return step and reason of every checkpoint, in order."""
    return [(e.step, e.reason) for e in events_of(run) if isinstance(e, Checkpointed)]


def measured(*attempts: RunFolder) -> dict[tuple[str, int], float | None]:
    """Return the held-out losses; one that was measured again must have come out the same."""
    losses: dict[tuple[str, int], float | None] = {}
    for run in attempts:
        for event in events_of(run):
            if isinstance(event, Evaluated):
                key = event.split, event.step
                assert losses.setdefault(key, event.loss) == event.loss, (run.root, event)
    return losses


def failure(run: RunFolder) -> Failed:
    """Return the end of a lane that failed."""
    last = events_of(run)[-1]
    assert isinstance(last, Failed), last
    return last


def assert_yielded(run: RunFolder, reason: str) -> None:
    """Check that a lane ended as one that can be resumed: its last whole step is checkpointed."""
    last = events_of(run)[-1]
    assert isinstance(last, Yielded), last
    assert last.reason == reason
    assert checkpointed(run)[-1][0] == steps_done(run)
    assert run.list_checkpoints()[0].name == f"step-{steps_done(run):08d}"


def lane_run(run: RunFolder) -> LaneRun:
    """Read what is exact about a lane."""
    story = [_timeless(msgspec.to_builtins(event)) for event in events_of(run)]
    checkpoints = {
        path.name: (path / "lane.safetensors").read_bytes() for path in run.list_checkpoints()
    }
    adapter = run.result / "adapter"
    result = {path.name: path.read_bytes() for path in adapter.glob("*")}
    return LaneRun(story=story, checkpoints=checkpoints, result=result)


def adapter_of(run: RunFolder) -> bytes:
    """Return the trained weights of a lane that is done."""
    return (run.result / "adapter" / "adapter_model.safetensors").read_bytes()


def _timeless(event: dict[str, Any]) -> dict[str, Any]:
    left_out = _OF_THE_CLOCK + _OF_THE_PLACE
    return {name: value for name, value in event.items() if name not in left_out}
