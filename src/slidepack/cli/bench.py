"""`slidepack bench`: timings, in a process of their own that may load torch."""

import json
import subprocess
import sys
from typing import Annotated, Any

import msgspec
import typer

from slidepack.cli.output import print_json, print_table, say
from slidepack.engine.contract.errors import ErrorReport, SlidepackError

app = typer.Typer(help="Timings of the engine on this machine.", no_args_is_help=True)


@app.callback()
def bench() -> None:
    """Timings of the engine on this machine."""


@app.command("lora")
def lora(
    shape: Annotated[str, typer.Option(help="smollm2-135m or llama-1b.")] = "smollm2-135m",
    batch: Annotated[int, typer.Option(min=1, help="Rows in a step.")] = 8,
    seq: Annotated[int, typer.Option(min=2, help="Tokens in a row.")] = 128,
    rank: Annotated[int, typer.Option(min=1, help="LoRA rank.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Steps timed, after three to warm up.")] = 20,
    device: Annotated[str, typer.Option(help="cpu or cuda:N; empty takes the GPU.")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time LoRA steps of one lane with random weights."""
    options = {"shape": shape, "batch": batch, "seq": seq, "rank": rank, "steps": steps}
    if device:
        options["device"] = device
    result = _run("lora", *(f"--{name}={value}" for name, value in options.items()))
    if json_output:
        print_json(result)
    else:
        print_table(("", ""), result.items())


@app.command("kernels")
def kernels(
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time the fused operations against the GPU's limits, plain torch, torch.compile and Liger."""
    result = _run("kernels")
    if json_output:
        print_json(result)
        return
    print_table(
        (
            *("operation", "ms", "work", "limit in the same run", "share"),
            *("eager", "torch fused", "compile", "Liger", "extra memory", "eager's"),
        ),
        (_kernel_row(row) for row in result["operations"]),
    )
    say("Ratios are another's time over ours: above 1, ours is faster.")
    print_table(
        (
            *("LoRA linear", "tokens", "adapters", "linear alone", "with adapters", "overhead"),
            *("loop", "its overhead", "extra memory"),
        ),
        (_lora_row(row) for row in result["lora"]),
    )
    say("Milliseconds forward and backward. The loop is plain torch, adapter by adapter.")
    for row in result["operations"]:
        for rival, failure in row["failures"].items():
            say(f"{row['operation']}: {rival} failed: {failure}")
    versions = result["versions"]
    if versions["liger"] is None:
        say("Liger is not installed: `pip install liger-kernel` adds its column.")
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    say(f"{result['device']}, {named}")


@app.command("tune")
def tune(
    write: Annotated[
        bool, typer.Option("--write", help="Put the sizes into the tile table of this install.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure which program sizes are the fastest on this GPU; takes some two minutes."""
    result = _run("tune", *(("--write",) if write else ()))
    if json_output:
        print_json(result)
        return
    say(result["toml"])
    if result["written"]:
        say(f"Written to {result['written']}.")
    else:
        say("Nothing is written; --write puts these rows into the tile table.")


def _kernel_row(row: dict[str, Any]) -> tuple[object, ...]:
    amount = row["amount"]
    ratios = (row[f"{rival}_ratio"] for rival in ("eager", "torch_fused", "compile", "liger"))
    return (
        row["operation"],
        f"{row['milliseconds']:.3f}",
        f"{amount / 1e12:.1f} TFLOP" if row["unit"] == "flops" else _megabytes(amount),
        row["limit"],
        f"{row['share']:.0%}",
        *(None if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        _megabytes(row["extra_bytes"]),
        _megabytes(row["eager_extra_bytes"]),
    )


def _lora_row(row: dict[str, Any]) -> tuple[object, ...]:
    loop_ms, loop_overhead = row["loop_ms"], row["loop_overhead"]
    return (
        f"{row['in']} to {row['out']}",
        row["tokens"],
        row["adapters"],
        f"{row['base_ms']:.3f}",
        f"{row['ours_ms']:.3f}",
        f"{row['overhead']:.1%}",
        None if loop_ms is None else f"{loop_ms:.3f}",
        None if loop_overhead is None else f"{loop_overhead:.0%}",
        _megabytes(row["extra_bytes"]),
    )


def _megabytes(num_bytes: int | None) -> str | None:
    return None if num_bytes is None else f"{num_bytes / 1e6:,.0f} MB"


class _Failure(msgspec.Struct):
    """What the benchmark prints last where it ends with a coded error."""

    error: ErrorReport


def _run(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "slidepack.engine.bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise _error(done)
    return json.loads(done.stdout.splitlines()[-1])


def _error(done: subprocess.CompletedProcess[str]) -> SlidepackError:
    try:
        said = (done.stdout.splitlines() or [""])[-1]
        return SlidepackError.from_report(msgspec.json.decode(said, type=_Failure).error)
    except msgspec.DecodeError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return SlidepackError(
            "RUN-CRASHED", "The benchmark did not run.", why=last, fix="Run `slidepack doctor`."
        )
