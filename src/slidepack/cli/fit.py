"""`slidepack fit`: whether a training fits a machine, how, and how fast it would be."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer

from slidepack.cli.client import connect
from slidepack.cli.fit_machine import DriveOptions, Host, describe_machine, measured_drives
from slidepack.cli.models import model_path
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.daemon.paths import expand_user
from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import (
    DatasetRef,
    FullMethod,
    JobSpec,
    LoraMethod,
    ModelRef,
    MomentState,
    NvmeUse,
    OptimSpec,
)
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.drive_wear import drives_text
from slidepack.engine.memory import GIB, Machine, MemoryNeed, plan_in_detail
from slidepack.engine.memory_advice import advise, ram_by_moments
from slidepack.engine.rates import Rates, with_drives
from slidepack.engine.shape import ModelShape, read_shape
from slidepack.engine.timing import StepTime, step_time

MethodName = Literal["full", "lora", "qlora"]

_METHODS: Final[dict[MethodName, FullMethod | LoraMethod]] = {
    "full": FullMethod(),
    "lora": LoraMethod(),
    "qlora": LoraMethod(base_precision="nf4"),
}


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted bytes, and what they are for."""

    bytes: int
    parts: Mapping[str, int]


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What `fit --json` prints."""

    fits: bool
    model: str
    params: int
    method: MethodName
    batch: int
    seq: int
    clip: float
    machine: Host
    memory: dict[str, Part] | None
    """Of `vram`, `ram` and `disk`; None where there is no plan."""
    step_seconds: float | None
    tokens_per_second: float | None
    critical_tokens: int | None
    """Tokens a step from which on the passes hide transfers and updates."""
    step: StepTime | None
    rates: Rates | None
    plan: RunPlan | None
    reason: str
    """Why this plan, or why there is none."""
    drives: str
    """What state on drives costs in time and wear; empty where RAM holds everything."""
    problem: ErrorReport | None
    change: tuple[str, ...]
    """What would make it fit, in words."""
    ram_needed_bytes: int | None
    """Free RAM with which it would fit, where that is what is missing."""
    vram_needed_bytes: int | None
    largest_batch: int | None
    """That fits, where the one asked for does not."""
    largest_seq: int | None
    ram_by_moments: dict[str, int]
    """Free RAM that full fine-tuning wants for each form of the optimizer's moments."""


def fit(
    model: Annotated[
        str, typer.Argument(help=f"Folder, id of an added model, or one of {', '.join(SHAPES)}.")
    ],
    method: Annotated[MethodName, typer.Option(help="What is trained.")] = "full",
    seq: Annotated[
        int, typer.Option(min=16, max=1 << 20, help="Tokens of the longest row.")
    ] = 1024,
    batch: Annotated[int, typer.Option(min=1, max=4096, help="Rows in a step.")] = 8,
    vram: Annotated[
        float | None, typer.Option(min=0, help="Free VRAM in 1e9 bytes; 0 is no card.")
    ] = None,
    ram: Annotated[float | None, typer.Option(min=0, help="Free RAM in 1e9 bytes.")] = None,
    nvme: Annotated[
        float | None,
        typer.Option(min=0, help="Free NVMe in 1e9 bytes, for checkpoints and for state."),
    ] = None,
    nvme_read: Annotated[
        float | None, typer.Option(min=0.01, help="How fast it reads, in 1e9 bytes a second.")
    ] = None,
    nvme_write: Annotated[
        float | None, typer.Option(min=0.01, help="How fast it writes, in 1e9 bytes a second.")
    ] = None,
    nvme_both: Annotated[
        float | None,
        typer.Option(min=0.01, help="The same of both ways together, while both go on."),
    ] = None,
    nvme_tbw: Annotated[
        float | None, typer.Option(min=0.1, help="What it is rated to take, in 1e12 bytes.")
    ] = None,
    moments: Annotated[
        MomentState, typer.Option(help="How full fine-tuning keeps AdamW's moments.")
    ] = "auto",
    ram_only: Annotated[
        bool, typer.Option("--ram-only", help="No training state on drives.")
    ] = False,
    clip: Annotated[float, typer.Option(min=0, help="Global gradient norm; 0 is none.")] = 1.0,
    json_output: Json = False,
) -> None:
    """Say whether a training fits, how it would use the machine, and how fast it would be."""
    shape = find_shape(model)
    spec = with_state(training_spec(model, method, seq, batch, clip), moments, drives=not ram_only)
    drive = DriveOptions(
        free_gb=nvme,
        read_gb=nvme_read,
        write_gb=nvme_write,
        both_gb=nvme_both,
        rated_tb=nvme_tbw,
    )
    host, rates = describe_machine(vram, ram, drive)
    answer = answer_fit(model, method, spec, shape, host, rates)
    if answer.drives and drive.as_here:
        host = msgspec.structs.replace(host, nvme=measured_drives() or host.nvme)
        answer = answer_fit(model, method, spec, shape, host, with_drives(rates, host.nvme))
    if json_output:
        print_json(answer)
    else:
        _print(answer)


def find_shape(model: str) -> ModelShape:
    """Return the shape of a model by folder, by name, or by id where a daemon runs.

    Raises:
        SlidepackError: the errors of `read_shape`, or what the daemon answers.
    """
    return SHAPES[model] if model in SHAPES else read_shape(find_folder(model))


def find_folder(model: str) -> Path:
    """Return a model's folder: the one named, or that of an added model where a daemon runs.

    Raises:
        SlidepackError: MODEL-NOT-A-MODEL, MODEL-NOT-FOUND, or what the daemon answers.
    """
    path = expand_user(model)
    if path.is_dir():
        return path
    if path.is_file():
        raise SlidepackError(
            "MODEL-NOT-A-MODEL",
            "A single file is not read here.",
            why=f"{path} is a file",
            fix="Add it with `slidepack models add`, and name the id that it gets.",
        )
    try:
        record = connect().get(model_path(model))
    except SlidepackError as error:
        if error.report.code not in ("DAEMON-NOT-RUNNING", "MODEL-NOT-FOUND"):
            raise
        raise SlidepackError(
            "MODEL-NOT-FOUND",
            f"There is no model {model}.",
            why=f"it is no folder, no known shape, and no id of an added model "
            f"({error.report.code})",
            fix=f"Name a folder or one of {', '.join(SHAPES)}.",
        ) from error
    return Path(record["path"])


def training_spec(model: str, method: MethodName, seq: int, batch: int, clip: float) -> JobSpec:
    """Return a training that is only planned.

    Raises:
        typer.BadParameter: its numbers do not go together.
    """
    try:
        return JobSpec(
            name="fit",
            base=ModelRef(model_id=model, path="", content_hash=""),
            dataset=DatasetRef(dataset_id="", path="", content_hash=""),
            method=_METHODS[method],
            optim=OptimSpec(clip_norm=clip),
            batch_size=batch,
            max_seq_len=seq,
            steps=1,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def with_state(spec: JobSpec, moments: MomentState, *, drives: bool) -> JobSpec:
    """Return a training with its state kept so; adapters keep theirs as they are.

    Args:
        spec: the training.
        moments: form of AdamW's moments.
        drives: whether state may lie on drives.
    """
    if not isinstance(spec.method, FullMethod):
        return spec
    method = msgspec.structs.replace(spec.method, moments=moments, nvme=NvmeUse(allow=drives))
    return msgspec.structs.replace(spec, method=method)


def answer_fit(
    model: str, method: MethodName, spec: JobSpec, shape: ModelShape, host: Host, rates: Rates
) -> Fit:
    """Plan, and say what comes of it."""
    machine = Machine(
        device=host.device,
        device_free_bytes=host.vram_bytes,
        ram_available_bytes=host.ram_bytes,
        cpu_threads=host.cpu_threads,
        nvme=host.nvme,
    )
    plan = need = time = problem = advice = None
    change: tuple[str, ...] = ()
    try:
        plan, need = plan_in_detail(spec, shape, machine)
        time = step_time(spec, shape, plan, rates)
        problem = _disk_problem(need, host.disk_bytes)
        if problem is not None:
            change = (problem.fix,)
    except SlidepackError as error:
        problem = error.report
        advice = advise(spec, shape, machine)
        change = (problem.fix,) if advice is None else advice.sentences() or (problem.fix,)
        if problem.code == "RAM-TOO-SMALL" and host.nvme and host.nvme.refused:
            change += (f"Or put state on drives: {host.nvme.refused}.",)
    return Fit(
        fits=problem is None,
        model=model,
        params=shape.total_params,
        method=method,
        batch=spec.batch_size,
        seq=min(spec.max_seq_len, shape.max_positions),
        clip=spec.optim.clip_norm,
        machine=host,
        memory=None if need is None else _parts(need),
        step_seconds=None if time is None else time.seconds,
        tokens_per_second=None if time is None else time.tokens_per_second,
        critical_tokens=None if time is None else time.critical_tokens,
        step=time,
        rates=None if time is None else rates,
        plan=plan,
        reason=_reason(plan, problem),
        drives="" if plan is None else drives_text(spec, shape, plan, rates, room=host.nvme),
        problem=problem,
        change=change,
        ram_needed_bytes=advice.ram_needed_bytes if advice else None,
        vram_needed_bytes=advice.vram_needed_bytes if advice else None,
        largest_batch=advice.largest_batch if advice else None,
        largest_seq=advice.largest_seq if advice else None,
        ram_by_moments=ram_by_moments(spec, shape, machine),
    )


def _reason(plan: RunPlan | None, problem: ErrorReport | None) -> str:
    if problem is not None:
        return f"{problem.what.removesuffix('.')}: {problem.why}."
    return plan.reason if plan is not None else ""


def _disk_problem(need: MemoryNeed, free: int | None) -> ErrorReport | None:
    if free is None or need.disk_bytes <= free:
        return None
    return SlidepackError(
        "DISK-FULL",
        "Checkpoints and result do not fit the disk.",
        why=f"they need {need.disk_bytes / GIB:.1f} GiB, {free / GIB:.1f} GiB are free",
        fix=f"Free {(need.disk_bytes - free) / GIB:.1f} GiB, or move the data directory with "
        "SLIDEPACK_HOME.",
    ).report


def _parts(need: MemoryNeed) -> dict[str, Part]:
    kinds = {"vram": need.device, "ram": need.host, "disk": need.disk}
    return {name: Part(bytes=sum(parts.values()), parts=parts) for name, parts in kinds.items()}


def _print(answer: Fit) -> None:
    what = {"full": "full fine-tuning", "lora": "LoRA", "qlora": "QLoRA"}[answer.method]
    say(
        f"{answer.model} ({answer.params / 1e9:.2f} billion parameters), {what}, "
        f"{answer.batch} x {answer.seq} tokens a step: "
        f"{'fits' if answer.fits else 'does not fit'}."
    )
    say(answer.reason)
    if answer.memory is not None:
        print_table(
            ("predicted", "GiB", "for"),
            (
                (name.upper() if first else "", f"{size / GIB:.2f}", label)
                for name, part in answer.memory.items()
                for first, (label, size) in _lines(part)
            ),
        )
    if answer.step is not None:
        say(_speed(answer))
    if answer.drives:
        say(answer.drives)
    for sentence in answer.change:
        say(sentence)


def _lines(part: Part) -> list[tuple[bool, tuple[str, int]]]:
    if not part.parts:
        return []
    return [
        (True, ("in all", part.bytes)),
        *((False, line) for line in sorted(part.parts.items(), key=lambda line: -line[1])),
    ]


def _speed(answer: Fit) -> str:
    assert answer.step is not None
    assert answer.rates is not None
    text = (
        f"A step takes about {answer.step.seconds:.2f} s "
        f"({answer.step.tokens_per_second:,.0f} tokens/s)."
    )
    if answer.critical_tokens is not None:
        text += (
            f" From {answer.critical_tokens:,} tokens a step on, transfers and updates are hidden."
        )
    return f"{text} Predicted with: {answer.rates.source}."
