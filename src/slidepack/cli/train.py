"""`slidepack train SPEC.toml`: the engine alone, with no daemon and no queue."""

import codecs
import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from slidepack.cli.output import print_json, say
from slidepack.cli.train_attempts import Attempts, require_room
from slidepack.cli.train_continue import continue_run
from slidepack.daemon.hardware import Waiting, machine_now
from slidepack.daemon.paths import disk_error
from slidepack.daemon.probe.report import probe_hardware
from slidepack.daemon.requests import JobSettings, advice, job_spec
from slidepack.engine.contract.errors import EXIT_YIELDED, SlidepackError
from slidepack.engine.contract.events import (
    AnyEvent,
    Checkpointed,
    Evaluated,
    Failed,
    Finished,
    Progress,
    Started,
    Warned,
    decode_event,
)
from slidepack.engine.contract.job import DatasetRef, JobSpec, ModelRef
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder, RunIdentity
from slidepack.engine.data.check import check_file
from slidepack.engine.data.report import CheckOptions
from slidepack.engine.importer.fingerprint import content_hash
from slidepack.engine.memory import Machine, plan_run
from slidepack.engine.memory_resume import place_again
from slidepack.engine.shape import read_shape

_POLL_SECONDS: Final = 0.2

Tell = Callable[[str], None]
"""Says a sentence to people; beside `--json`, on standard error."""


class TrainFile(JobSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training file: what to train, on what, and where to; beside it, a job's settings."""

    model: str
    """A Hugging Face folder."""
    data: str
    """Rows, as `slidepack data check` reads them."""
    out: str
    """A folder for the run. Where it is there already, the run in it is gone on with."""
    continues: str = ""
    """The `out` folder of another run, whose adapter or weights this one begins with."""
    weights_only: bool = False
    """Begin with fresh optimizer state, though that run left some."""
    held_out: str = ""
    """Rows that are only measured; empty takes a share of the data."""
    format: str = ""
    """Format of the rows; empty detects it."""
    columns: dict[str, str] = msgspec.field(default_factory=dict)
    """Role to column of the rows, as in {output = "answer"}; what is not named is found out."""
    allow_rejects: bool = False
    """Take data of which more than the usual share is left out."""

    def __post_init__(self) -> None:
        """Refuse what is no path."""
        for name in ("model", "data", "out"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty")
        if self.weights_only and not self.continues:
            raise ValueError("weights_only is set, and continues names no run")
        for name in ("model", "data", "out", "held_out", "continues"):
            if "\0" in getattr(self, name):
                raise ValueError(f"{name} holds a NUL character")


def train(
    spec_file: Annotated[Path, typer.Argument(help="Training file, TOML.", metavar="SPEC.toml")],
    json_output: Annotated[bool, typer.Option("--json", help="Print events as JSON.")] = False,
) -> None:
    """Train as a file says; run it again to go on from the last checkpoint."""
    asked = _read(spec_file)
    tell = _note if json_output else say
    show = print_json if json_output else _print
    beside = spec_file.parent
    root = (beside / asked.out).absolute()
    base = _base((beside / asked.model).absolute())
    try:
        with _locked(root) as lock:
            folder = _attempt(root, _spec(asked, beside, root, base, tell), tell)
            code = _run(folder, lock, show, Attempts(root, _made(root)))
    except OSError as error:
        raise disk_error(error, root) from error
    if code == 0:
        tell(f"The result is in {folder.result}.")
    else:
        tell("Stopped; run the same command to go on.")
    raise typer.Exit(code)


def _read(spec_file: Path) -> TrainFile:
    try:
        # Windows' editors mark UTF-8 by bytes that TOML does not know.
        data = spec_file.read_bytes().removeprefix(codecs.BOM_UTF8)
        return msgspec.toml.decode(data, type=TrainFile)
    except (OSError, msgspec.DecodeError) as error:
        help_ = advice(str(error).rpartition("`$.")[2].rstrip("`"))
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The training file cannot be read.",
            why=f"{spec_file}: {error}{help_ and f'; {help_}'}",
            fix="It needs model, data and out, and any of a job's settings, as TOML.",
        ) from error


def _base(model: Path) -> ModelRef:
    read_shape(model)
    return ModelRef(
        model_id=model.name, path=str(model), content_hash=content_hash(model), name=model.name
    )


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[int]:
    """Make the folder and take it; a worker holds the lock too, as it may outlive this process."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / "train.lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SlidepackError(
                "RUN-FOLDER-BUSY",
                "A run is under way in this folder.",
                why=f"{root / 'train.lock'} is locked",
                fix="Wait for it to end, or stop its process.",
            ) from error
        yield descriptor
    finally:
        os.close(descriptor)


def _spec(asked: TrainFile, beside: Path, root: Path, base: ModelRef, tell: Tell) -> JobSpec:
    data = beside / asked.data
    held_out = None
    if asked.held_out:
        held_out = _rows(asked, beside / asked.held_out, root / "held-out", tell)
    rows = _rows(asked, data, root / "data", tell)
    spec = job_spec(asked, f"{data.stem} on {base.name}", base, rows, held_out)
    if not asked.continues:
        return spec
    source = (beside / asked.continues).absolute()
    spec = continue_run(spec, source, weights_only=asked.weights_only)
    assert spec.continues is not None
    taken = "optimizer state" if spec.continues.taken == "state" else "weights alone"
    tell(f"Goes on from {spec.continues.path} with its {taken}.")
    return spec


def _rows(asked: TrainFile, source: Path, folder: Path, tell: Tell) -> DatasetRef:
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / "rows.jsonl"
    options = CheckOptions(
        form=asked.format or None, columns=asked.columns, allow_rejects=asked.allow_rejects
    )
    report = check_file(source, rows, folder / "rejects.jsonl", options)
    if report.rejected:
        tell(f"{report.rejected} of {report.rows} rows of {source.name} are left out.")
    return DatasetRef(
        dataset_id=source.name,
        path=str(rows),
        content_hash=report.content_hash,
        mapping=report.family or "",
    )


def _attempt(root: Path, spec: JobSpec, tell: Tell) -> RunFolder:
    """Make the next attempt's folder, which goes on from the checkpoints of earlier ones."""
    earlier = _made(root)
    for folder in earlier:
        if folder.read_spec() != spec:
            raise SlidepackError(
                "RUN-SPEC-INVALID",
                "The folder holds another run.",
                why=f"{folder.spec} differs from the training file, its model or its data",
                fix="Name another folder as out, or remove this one.",
            )
        if folder.result.exists():
            raise SlidepackError(
                "RUN-SPEC-INVALID",
                "This run is complete.",
                why=f"{folder.result} is there",
                fix="Name another folder as out to train again.",
            )
    if earlier:
        Attempts(root, earlier).tidy()
    newest_first = earlier[::-1]
    checkpoints = [str(path) for folder in newest_first for path in folder.list_checkpoints()]
    resumed = next((folder for folder in newest_first if folder.list_checkpoints()), None)
    plan = _plan(spec, root) if resumed is None else _plan_again(resumed, spec, root)
    tell(plan.reason)
    require_room(plan, spec, root, earlier)
    number = len(list(root.glob("attempt-*"))) + 1
    attempt = RunFolder(root / f"attempt-{number:04d}")
    identity = RunIdentity(
        job_id=spec.name, attempt=number, nonce="", resume_from=tuple(checkpoints)
    )
    attempt.create(spec, plan, identity)
    return attempt


def _made(root: Path) -> list[RunFolder]:
    """Return the attempts in a run's folder, oldest first; one that was never finished is none."""
    folders = [RunFolder(path) for path in sorted(root.glob("attempt-*"))]
    # The identity is written last.
    return [folder for folder in folders if folder.identity.exists()]


def _plan(spec: JobSpec, root: Path) -> RunPlan:
    return plan_run(spec, read_shape(Path(spec.base.path)), _machine(root))


def _plan_again(resumed: RunFolder, spec: JobSpec, root: Path) -> RunPlan:
    """Return the plan of a run that goes on: a drive may be full, or gone, since it began."""
    earlier = resumed.read_plan()
    if earlier.full is None or earlier.full.nvme is None:
        return earlier
    return place_again(earlier, spec, read_shape(Path(spec.base.path)), _machine(root))


def _machine(root: Path) -> Machine:
    machine = machine_now(probe_hardware(root, software=True), whole=False, device="auto")
    if isinstance(machine, Waiting):
        raise SlidepackError(
            "GPU-UNUSABLE",
            "The run cannot start on this machine now.",
            why=machine.reason,
            fix="Run `slidepack doctor`.",
        )
    return machine


def _run(folder: RunFolder, lock: int, show: Callable[[AnyEvent], None], attempts: Attempts) -> int:
    """Run the worker, showing its events as they come; return 0 or EXIT_YIELDED.

    What it no longer needs of earlier attempts goes meanwhile.

    Raises:
        SlidepackError: what the run failed of.
        KeyboardInterrupt: after the worker has left; at once where it comes again.
    """
    with folder.log.open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "slidepack.engine.worker", str(folder.root)],
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
        )
    events = _Events(folder.events)
    ended = interrupted = False
    while not ended:
        try:
            ended = _has_ended(worker)
            for event in events.new():
                show(event)
                if isinstance(event, Checkpointed | Finished):
                    attempts.tidy(complete=isinstance(event, Finished))
        except KeyboardInterrupt:
            # The worker got the signal too: it finishes the step and writes a checkpoint.
            if interrupted:
                raise
            interrupted = True
    if events.failed is not None:
        raise SlidepackError.from_report(events.failed.error)
    if interrupted and worker.returncode:
        raise KeyboardInterrupt
    if worker.returncode not in (0, EXIT_YIELDED):
        code = worker.returncode
        raise SlidepackError(
            "RUN-CRASHED",
            "The run's process died.",
            why=f"signal {-code}" if code < 0 else f"exit code {code}",
            fix=f"Read {folder.log}, then run the same command to go on.",
        )
    return worker.returncode


def _has_ended(worker: subprocess.Popen[bytes]) -> bool:
    """Wait for a moment and return whether the worker has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(timeout=_POLL_SECONDS)
    return worker.poll() is not None


class _Events:
    """Reads a run's events while they are written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.failed: Failed | None = None
        """How the run failed, once that was read."""

    def new(self) -> Iterator[AnyEvent]:
        """Yield what was written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                try:
                    event = decode_event(line)
                except msgspec.DecodeError:
                    # A full disk took only a part of the line.
                    continue
                if isinstance(event, Failed):
                    self.failed = event
                yield event


def _note(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _print(event: AnyEvent) -> None:
    match event:
        case Started():
            say(f"Training on {event.device} in {event.precision}, {event.total_steps} steps.")
            if event.drives:
                say(f"State on drives is moved by {event.drives}.")
        case Progress():
            say(
                f"step {event.step}/{event.total_steps}  loss {_number(event.loss)}  "
                f"norm {_number(event.grad_norm)}  {event.tokens_per_second:,.0f} tokens/s"
            )
        case Evaluated():
            say(f"held-out loss after step {event.step}: {_number(event.loss)}")
        case Warned():
            say(f"{event.code}: {event.message}")
        case Finished():
            say(f"Done: {event.steps} steps in {event.seconds:,.0f} s.")


def _number(value: float | None) -> str:
    return "no number" if value is None else f"{value:.4f}"
