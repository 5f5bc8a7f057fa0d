"""`slidepack export`: a trained result in a form that other programs take."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from slidepack.cli.client import connect
from slidepack.cli.export_process import run_export
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, say
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.export.contract import (
    ExportFormat,
    ExportRequest,
    ExportResult,
    Quant,
    Verification,
)

__all__ = ["export"]


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """A result and where it comes from."""

    result: Path
    name: str
    base: str = ""
    base_hash: str = ""


def export(
    job: Annotated[
        str, typer.Argument(help="Id of a completed job, or its result folder.", metavar="JOB")
    ],
    to: Annotated[Path, typer.Option("--to", help="Folder to create, or an empty one.")],
    kind: Annotated[
        ExportFormat,
        typer.Option("--format", help="The adapter; a whole model; a file for llama.cpp; Ollama."),
    ],
    quant: Annotated[Quant, typer.Option(help="How a GGUF file stores matrices.")] = "f16",
    adapter_only: Annotated[
        bool, typer.Option("--adapter-only", help="With gguf: the adapter alone, as a GGUF LoRA.")
    ] = False,
    base: Annotated[
        Path | None, typer.Option(help="Folder of the base model, where it has moved.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What the model is called.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read it back and compare its logits.")
    ] = True,
    json_output: Json = False,
) -> None:
    """Write a trained result for other programs, and check that it computes the same."""
    found = _of_job(int(job)) if job.isdecimal() else _of_folder(Path(job))
    try:
        request = ExportRequest(
            result=str(found.result),
            base=found.base if base is None else str(base.resolve()),
            base_hash=found.base_hash,
            target=str(to.resolve()),
            format=kind,
            quant=quant,
            adapter_only=adapter_only,
            verify=verify,
            name=name or found.name,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    result = run_export(request)
    if json_output:
        print_json(result)
    else:
        _tell(result)


def _of_job(job_id: int) -> _Found:
    detail = connect().get(f"/jobs/{job_id}")
    job, spec = detail["job"], detail["spec"]
    if job["state"] != "completed" or job["result"] is None:
        raise SlidepackError(
            "RUN-NO-RESULT",
            f"Job {job_id} has no result yet.",
            why=f"it is {job['state']}",
            fix="Wait until it is completed.",
        )
    return _found(Path(job["result"]), spec["name"], spec["base"])


def _of_folder(folder: Path) -> _Found:
    """Find what a result folder, or the run folder around it, says of itself."""
    folder = folder.resolve()
    result = folder / "result" if (folder / "result").is_dir() else folder
    run = RunFolder(result.parent)
    if run.spec.exists():
        spec: JobSpec = run.read_spec()
        return _found(result, spec.name, msgspec.to_builtins(spec.base))
    return _Found(result=result, name=result.name, base=_named_base(result / "adapter"))


def _found(result: Path, name: str, base: dict[str, Any]) -> _Found:
    return _Found(result=result, name=name, base=base["path"], base_hash=base["content_hash"])


def _named_base(adapter: Path) -> str:
    """Return the base that an adapter names, where that is a folder of this machine."""
    path = adapter / "adapter_config.json"
    if not path.exists():
        return ""
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise SlidepackError(
            "RUN-FOLDER-BROKEN",
            "The adapter cannot be read.",
            why=f"{path}: {error}",
            fix="Check that the folder is a result.",
        ) from error
    named = Path(str(config.get("base_model_name_or_path") or ""))
    return str(named) if named.is_absolute() and named.is_dir() else ""


def _tell(result: ExportResult) -> None:
    say(f"The export is in {result.path}:")
    for name, size in result.files.items():
        say(f"  {name}  {size / 1e6:,.1f} MB")
    if result.verification is None:
        say("It was not checked.")
    else:
        say(_figures(result.verification))
    for note in result.notes:
        say(note)


def _figures(found: Verification) -> str:
    return (
        f"Read back by {found.loader} and compared with the trainer on {found.prompts} prompts "
        f"({found.positions} tokens): logits differ by {found.max_abs:.2g} at most "
        f"({found.max_bound:.2g} allowed) and {found.mean_abs:.2g} on average "
        f"({found.mean_bound:.2g} allowed); the likeliest token is the same at "
        f"{found.top1_agreement:.1%}."
    )
