"""`slidepack bench chat`: answers a second, beside transformers in the same run."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import platformdirs
import typer

from slidepack.cli.bench_process import run_benchmark
from slidepack.cli.demo_model import MODEL_NAME, fetch_demo_model
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.contract import ImportFailed, ImportRequest, decode_line
from slidepack.engine.shape import read_shape

__all__ = ["chat"]

_MODULE: Final = "slidepack.engine.bench_chat"
_CASES: Final = {"one": "one answer", "voices": "{} voices at once"}


def chat(
    model: Annotated[
        Path | None, typer.Option(help="A Hugging Face folder; the demo's model where left out.")
    ] = None,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 256,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 64,
    voices: Annotated[int, typer.Option(min=1, help="Adapters that answer at once.")] = 4,
    rank: Annotated[int, typer.Option(min=1, help="Of the adapters.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each side.")] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of torch on the CPU; all cores.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda:N.")] = "cpu",
    json_output: Json = False,
) -> None:
    """Time answers of the chat engine, and of transformers and PEFT where they are installed."""
    if model is not None:
        read_shape(model)
    options = {
        "model": str(_demo_folder() if model is None else model.absolute()),
        "device": device,
        "threads": threads or len(os.sched_getaffinity(0)),
        "prompt": prompt,
        "tokens": tokens,
        "voices": voices,
        "rank": rank,
        "rounds": rounds,
    }
    result = run_benchmark(msgspec.json.encode(options).decode(), module=_MODULE)
    if json_output:
        print_json(result)
        return
    print_table(
        ("case", "tokens/s", "first token", "transformers", "its first", "ours over its"),
        _rows(result),
    )
    if "transformers" not in result["versions"]:
        say("transformers and peft are not installed: `pip install transformers peft` adds them.")
    named = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    say(
        f"Greedy answers of {tokens} tokens to prompts of {prompt}; medians of {rounds} rounds. "
        f"{result['device']}, {result['precision']}, {named}"
    )


def _rows(result: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for name, sides in result["cases"].items():
        ours, theirs = sides["ours"], sides.get("theirs")
        rival: tuple[object, ...] = (None, None, None)
        if theirs is not None:
            ratio = ours["tokens_per_second"] / theirs["tokens_per_second"]
            rival = (*_figures(theirs), f"{ratio:.2f}")
        yield (_CASES[name].format(result["options"]["voices"]), *_figures(ours), *rival)


def _figures(side: dict[str, Any]) -> tuple[str, str]:
    return f"{side['tokens_per_second']:,.1f}", f"{side['first_token_seconds']:.3f} s"


def _demo_folder() -> Path:
    """Return the demo's model, downloaded and converted once.

    Raises:
        SlidepackError: MODEL-UNREACHABLE, MODEL-BROKEN, or the importer's own.
    """
    cache = platformdirs.user_cache_path("slidepack") / "bench"
    folder = cache / MODEL_NAME
    if folder.is_dir():
        return folder
    gguf = fetch_demo_model(cache / "downloads")
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        converted, progress = Path(scratch) / "model", Path(scratch) / "progress.jsonl"
        request = ImportRequest(
            kind="gguf", source=str(gguf), target=str(converted), progress=str(progress)
        )
        file = Path(scratch) / "request.json"
        file.write_bytes(msgspec.json.encode(request))
        command = [sys.executable, "-P", "-m", "slidepack.engine.importer", str(file)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise _import_error(progress, ended.stderr)
        # Another command may have been first; its folder is the same.
        if not folder.is_dir():
            shutil.move(converted, folder)
    return folder


def _import_error(progress: Path, said: str) -> SlidepackError:
    lines = progress.read_bytes().splitlines() if progress.exists() else []
    last = decode_line(lines[-1]) if lines else None
    if isinstance(last, ImportFailed):
        return SlidepackError.from_report(last.error)
    return SlidepackError(
        "RUN-CRASHED",
        "The demo's model could not be converted.",
        why=(said.strip().splitlines() or ["the importer said nothing"])[-1],
        fix="Name a model of your own with --model.",
    )
