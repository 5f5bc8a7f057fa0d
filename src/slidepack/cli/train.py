"""`slidepack train SPEC.toml`: the engine alone, with no daemon and no queue."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from slidepack.cli.output import print_json, say
from slidepack.daemon.hardware import Waiting, machine_now
from slidepack.daemon.paths import disk_error
from slidepack.daemon.probe.report import probe_hardware
from slidepack.daemon.requests import JobSettings, job_spec
from slidepack.engine.contract.errors import CATALOGUE, SlidepackError
from slidepack.engine.contract.events import (
    AnyEvent,
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
from slidepack.engine.importer.fingerprint import content_hash
from slidepack.engine.memory import plan_run
from slidepack.engine.shape import read_shape

_POLL_SECONDS: Final = 0.2


class TrainFile(JobSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training file: what to train, on what, and where to; beside it, a job's settings."""

    model: str
    """A Hugging Face folder."""
    data: str
    """Rows, as `slidepack data check` reads them."""
    out: str
    """A folder for the run. Where it is there already, the run in it is gone on with."""
    held_out: str = ""
    """Rows that are only measured; empty takes a share of the data."""
    format: str = ""
    """Format of the rows; empty detects it."""


def train(
    spec_file: Annotated[Path, typer.Argument(help="Training file, TOML.", metavar="SPEC.toml")],
    json_output: Annotated[bool, typer.Option("--json", help="Print events as JSON.")] = False,
) -> None:
    """Train as a file says; run it again to go on from the last checkpoint."""
    asked = _read(spec_file)
    root = (spec_file.parent / asked.out).absolute()
    try:
        spec = _spec(asked, spec_file.parent, root)
        folder = _attempt(root, spec)
    except OSError as error:
        raise disk_error(error, root) from error
    code = _run(folder, as_json=json_output)
    if code == 0 and not json_output:
        say(f"The result is in {folder.result}.")
    raise typer.Exit(code)


def _read(spec_file: Path) -> TrainFile:
    try:
        return msgspec.toml.decode(spec_file.read_bytes(), type=TrainFile)
    except (OSError, msgspec.DecodeError) as error:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The training file cannot be read.",
            why=f"{spec_file}: {error}",
            fix="It needs model, data and out, and any of a job's settings, as TOML.",
        ) from error


def _spec(asked: TrainFile, beside: Path, root: Path) -> JobSpec:
    model = (beside / asked.model).absolute()
    read_shape(model)
    base = ModelRef(
        model_id=model.name, path=str(model), content_hash=content_hash(model), name=model.name
    )
    data = beside / asked.data
    held_out = None
    if asked.held_out:
        held_out = _rows(beside / asked.held_out, root / "held-out", asked.format)
    rows = _rows(data, root / "data", asked.format)
    return job_spec(asked, f"{data.stem} on {model.name}", base, rows, held_out)


def _rows(source: Path, folder: Path, form: str) -> DatasetRef:
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / "rows.jsonl"
    report = check_file(source, rows, folder / "rejects.jsonl", form or None)
    if report.usable < report.rows:
        say(f"{report.rows - report.usable} of {report.rows} rows of {source.name} are left out.")
    return DatasetRef(
        dataset_id=source.name,
        path=str(rows),
        content_hash=report.content_hash,
        mapping=report.format,
    )


def _attempt(root: Path, spec: JobSpec) -> RunFolder:
    """Make the next attempt's folder, which goes on from the checkpoints of earlier ones."""
    earlier = [RunFolder(path) for path in sorted(root.glob("attempt-*"), reverse=True)]
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
    checkpoints = [str(path) for folder in earlier for path in folder.list_checkpoints()]
    resumed = next((folder for folder in earlier if folder.list_checkpoints()), None)
    plan = _plan(spec, root) if resumed is None else resumed.read_plan()
    say(plan.reason)
    attempt = RunFolder(root / f"attempt-{len(earlier) + 1:04d}")
    identity = RunIdentity(
        job_id=spec.name, attempt=len(earlier) + 1, nonce="", resume_from=tuple(checkpoints)
    )
    attempt.create(spec, plan, identity)
    return attempt


def _plan(spec: JobSpec, root: Path) -> RunPlan:
    machine = machine_now(probe_hardware(root, software=True), whole=False, device="auto")
    if isinstance(machine, Waiting):
        raise SlidepackError(
            "GPU-UNUSABLE",
            "The run cannot start on this machine now.",
            why=machine.reason,
            fix="Run `slidepack doctor`.",
        )
    return plan_run(spec, read_shape(Path(spec.base.path)), machine)


def _run(folder: RunFolder, *, as_json: bool) -> int:
    with folder.log.open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "slidepack.engine.worker", str(folder.root)],
            stdout=log,
            stderr=log,
        )
    try:
        for event in _follow(folder, worker):
            if as_json:
                print_json(event)
            else:
                _print(event)
    except KeyboardInterrupt:
        # The worker got the signal too: it finishes the step and writes a checkpoint.
        worker.wait()
        say("Stopped; run the same command to go on.")
    # Below zero it is the signal that ended the process.
    return CATALOGUE["RUN-CRASHED"].exit_code if worker.returncode < 0 else worker.returncode


def _follow(folder: RunFolder, worker: subprocess.Popen[bytes]) -> Iterator[AnyEvent]:
    """Yield events as they are written, until the worker has ended."""
    position = 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=_POLL_SECONDS)
        ended = worker.poll() is not None
        if folder.events.exists():
            with folder.events.open("rb") as file:
                file.seek(position)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    position += len(line)
                    yield decode_event(line)
        if ended:
            return


def _print(event: AnyEvent) -> None:
    match event:
        case Started():
            say(f"Training on {event.device} in {event.precision}, {event.total_steps} steps.")
        case Progress():
            say(
                f"step {event.step}/{event.total_steps}  loss {_number(event.loss)}  "
                f"norm {_number(event.grad_norm)}  {event.tokens_per_second:,.0f} tokens/s"
            )
        case Evaluated():
            say(f"held-out loss after step {event.step}: {_number(event.loss)}")
        case Warned():
            say(f"{event.code}: {event.message}")
        case Failed():
            say(event.error.line())
        case Finished():
            say(f"Done: {event.steps} steps in {event.seconds:,.0f} s.")


def _number(value: float | None) -> str:
    return "no number" if value is None else f"{value:.4f}"
