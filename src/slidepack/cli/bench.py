"""`slidepack bench`: timings, in a process of their own that may load torch."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from slidepack.cli.bench_chat import chat
from slidepack.cli.bench_daemon import daemon
from slidepack.cli.bench_nvme import nvme
from slidepack.cli.bench_packed import packed
from slidepack.cli.bench_planner import planner
from slidepack.cli.bench_process import run_benchmark
from slidepack.cli.bench_sweep import sweep
from slidepack.cli.bench_web import web
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say

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
    json_output: Json = False,
) -> None:
    """Time LoRA steps of one lane with random weights."""
    options = {"shape": shape, "batch": batch, "seq": seq, "rank": rank, "steps": steps}
    if device:
        options["device"] = device
    result = run_benchmark("lora", *(f"--{name}={value}" for name, value in options.items()))
    if json_output:
        print_json(result)
    else:
        print_table(("", ""), result.items())


@app.command("slide")
def slide(
    shape: Annotated[
        str,
        typer.Option(
            help="llama-1b, llama-3b, llama-8b, qwen2.5-14b, qwen2.5-32b or mistral-123b."
        ),
    ],
    batch: Annotated[int, typer.Option(min=1, help="Rows in a step.")],
    seq: Annotated[int, typer.Option(min=2, help="Tokens in a row.")],
    micro_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a micro-batch.")] = 8192,
    steps: Annotated[int, typer.Option(min=1, help="Steps timed, after the warm-up.")] = 6,
    warm_up: Annotated[int, typer.Option(min=0, help="Steps before those that are timed.")] = 2,
    vram_cap: Annotated[
        float | None, typer.Option(help="VRAM that may be used, in GB; all where left out.")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="cpu, gpu or auto.")] = "auto",
    moments: Annotated[str, typer.Option(help="fp32, bf16 or int8.")] = "fp32",
    clip: Annotated[float, typer.Option(min=0.0, help="Gradient norm to clip at; 0: none.")] = 0.0,
    rows: Annotated[
        str | None, typer.Option(help="device or host; the plan chooses where left out.")
    ] = None,
    weight_slots: Annotated[
        int | None, typer.Option(min=2, help="Layers' weights on the card; the plan chooses.")
    ] = None,
    grad_slots: Annotated[
        int | None, typer.Option(min=1, help="Layers' gradients on the card; the plan chooses.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Of the CPU's optimizer; all cores but three.")
    ] = None,
    alias_layers: Annotated[
        int | None,
        typer.Option(min=1, help="Layers of storage that all share: for a state beyond the RAM."),
    ] = None,
    nvme_folder: Annotated[
        str | None, typer.Option(help="Folder on a drive for a share of the state.")
    ] = None,
    nvme_share: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Of the state on the drive; all of it.")
    ] = None,
    ram_cap: Annotated[
        float | None, typer.Option(help="GB of memory that the process may have; a hard limit.")
    ] = None,
    device: Annotated[str | None, typer.Option(hidden=True)] = None,
    json_output: Json = False,
) -> None:
    """Time full fine-tuning by sliding layers against its ceiling, with random weights."""
    options = {
        "shape": shape,
        "batch": batch,
        "seq": seq,
        "micro-tokens": micro_tokens,
        "steps": steps,
        "warm-up": warm_up,
        "vram-cap": vram_cap,
        "optimizer": optimizer,
        "moments": moments,
        "clip": clip,
        "rows": rows,
        "weight-slots": weight_slots,
        "grad-slots": grad_slots,
        "threads": threads,
        "alias-layers": alias_layers,
        "nvme-folder": nvme_folder,
        "nvme-share": nvme_share,
        "ram-cap": ram_cap,
        "device": device,
    }
    given = (f"--{name}={value}" for name, value in options.items() if value is not None)
    result = run_benchmark("slide", *given)
    if json_output:
        print_json(result)
        return
    print_table(("", ""), _slide_rows(result))
    for reason in result["plan"]["reasons"]:
        say(f"Plan: {reason}.")
    memory, peak = result["memory"], result["memory"]["ram_peak_bytes"]
    used = "" if peak is None else f" ({peak / 1e9:.1f} GB were used)"
    say(
        f"fit would have said {result['plan']['predicted_step_seconds']:.2f} s a step "
        f"({result['median_step_seconds']:.2f} s were measured) and "
        f"{memory['ram_predicted_bytes'] / 1e9:.1f} GB of RAM{used}."
    )
    if result["alias_note"]:
        say(f"Aliased: {result['alias_note']}.")
    if result["nvme"]:
        say(
            f"On the drive: {result['nvme']['stored_bytes'] / 1e9:.1f} GB of state, "
            f"{result['nvme']['transport']}."
        )


app.command("packed")(packed)
app.command("nvme")(nvme)
app.command("chat")(chat)
app.command("daemon")(daemon)
app.command("web")(web)
app.command("planner")(planner)
app.command("sweep")(sweep)


@app.command("kernels")
def kernels(json_output: Json = False) -> None:
    """Time the fused operations against the GPU's limits, plain torch, torch.compile and Liger."""
    result = run_benchmark("kernels")
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
    json_output: Json = False,
) -> None:
    """Measure which program sizes are the fastest on this GPU; takes some two minutes."""
    result = run_benchmark("tune", *(("--write",) if write else ()))
    if json_output:
        print_json(result)
        return
    say(result["toml"])
    if result["written"]:
        say(f"Written to {result['written']}.")
    else:
        say("Nothing is written; --write puts these rows into the tile table.")


def _slide_rows(result: dict[str, Any]) -> Iterator[tuple[object, object]]:
    ceiling, memory, plan = result["ceiling"], result["memory"], result["plan"]
    yield (
        "run",
        f"{result['shape']}, {result['batch']} x {result['seq']} tokens, "
        f"{result['micro_batches']} micro-batches, {result['moments']} moments, "
        f"clip {result['clip']:g}",
    )
    yield "tokens a second", f"{result['tokens_per_second']:,.0f}"
    yield "with the last tail", f"{result['tokens_per_second_with_tail']:,.0f}"
    yield (
        "ceiling",
        f"{ceiling['tokens_per_second']:,.0f} ({ceiling['resident_layers']} resident layers, "
        f"rows on the {ceiling['rows']})",
    )
    yield "share of the ceiling", f"{result['share_of_ceiling']:.1%}"
    yield (
        "seconds a step",
        f"{result['median_step_seconds']:.3f} (median), {result['mean_step_seconds']:.3f} "
        f"(total / {len(result['step_seconds'])})",
    )
    yield "each step", " ".join(f"{seconds:.3f}" for seconds in result["step_seconds"])
    for name, seconds in result["split"].items():
        yield f"  {name}", f"{seconds:.3f} s"
    for name, rates in result["optimizer_rates"].items():
        yield (
            f"{name} optimizer",
            f"{_billions(rates['beside_the_rest'])} beside the rest, "
            f"{_billions(rates['alone'])} alone",
        )
    yield (
        "optimizer",
        f"{plan['engines']}; {plan['cpu_share']:.0%} of the parameters on the CPU",
    )
    if result["link"] is not None:
        link = result["link"]
        yield (
            "link",
            f"{link['h2d']:.1f} GB/s in, {link['d2h']:.1f} out, {link['both_each_way']:.1f} each "
            "way at once",
        )
    yield (
        "VRAM peak",
        f"{memory['vram_peak_bytes'] / 1e9:.2f} GB, "
        f"{memory['vram_reserved_bytes'] / 1e9:.2f} GB reserved",
    )
    if memory["ram_peak_bytes"] is not None:
        yield (
            "RAM peak",
            f"{memory['ram_peak_bytes'] / 1e9:.1f} GB, "
            f"{memory['ram_bytes_per_parameter']:.1f} bytes a parameter",
        )
    yield (
        "last step",
        f"loss {result['loss']:.4f}, gradient norm {result['grad_norm']:.3g}"
        + ("" if result["applied"] else ", not applied"),
    )
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    yield "on", f"{result['device']}, {versions}"


def _billions(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:.2f} Gparam/s"


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
