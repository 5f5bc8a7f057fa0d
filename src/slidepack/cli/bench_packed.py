"""`slidepack bench packed`: LoRA lanes in one pass, against one by one, PEFT and the ceiling."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from slidepack.cli.bench_process import run_benchmark
from slidepack.cli.output import print_json, print_table, say

__all__ = ["packed"]


def packed(
    shape: Annotated[
        str,
        typer.Option(
            help="smollm2-135m, llama-1b, llama-3b, llama-8b, qwen2.5-14b, qwen2.5-32b or "
            "mistral-123b."
        ),
    ],
    batch: Annotated[int, typer.Option(min=1, help="Rows of a lane in a step.")],
    seq: Annotated[int, typer.Option(min=2, help="Tokens in a row.")],
    rank: Annotated[int, typer.Option(min=1, help="LoRA rank of every lane.")],
    lanes: Annotated[str, typer.Option(help="Numbers of lanes, e.g. 1,2,4.")] = "1,2,4,8,16,32",
    steps: Annotated[int, typer.Option(min=1, help="Steps timed for each number.")] = 10,
    warm_up: Annotated[int, typer.Option(min=0, help="Steps before them.")] = 3,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens of a pass; a step's, up to 16384, where left out."),
    ] = None,
    activations: Annotated[str, typer.Option(help="keep or recompute.")] = "keep",
    vram_cap: Annotated[
        float | None, typer.Option(help="VRAM that may be used, in GB; all where left out.")
    ] = None,
    no_solo: Annotated[
        bool, typer.Option("--no-solo", help="Without one lane alone, unless --lanes has it.")
    ] = False,
    no_peft: Annotated[bool, typer.Option("--no-peft", help="Without PEFT.")] = False,
    device: Annotated[str | None, typer.Option(hidden=True)] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time packed LoRA lanes against one by one, PEFT and the base's ceiling, random weights."""
    options = {
        "shape": shape,
        "lanes": lanes,
        "batch": batch,
        "seq": seq,
        "rank": rank,
        "steps": steps,
        "warm-up": warm_up,
        "max-tokens": max_tokens,
        "activations": activations,
        "vram-cap": vram_cap,
        "device": device,
    }
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    without = {"--no-solo": no_solo, "--no-peft": no_peft}
    given += [flag for flag, wanted in without.items() if wanted]
    result = run_benchmark("packed", *given)
    if json_output:
        print_json(result)
        return
    _print(result)


def _print(result: dict[str, Any]) -> None:
    print_table(("", ""), _rows(result))
    print_table(
        (
            *("lanes", "passes", "s/step", "tokens/s", "a lane", "x alone", "x PEFT"),
            *("ceiling", "VRAM GB"),
        ),
        (_pack_row(pack) for pack in result["packs"]),
    )
    say("Gains are tokens a second over those of one lane alone, and of one adapter in PEFT.")
    if result["one_by_one"] is not None:
        say(f"Alone: {result['one_by_one']['note']}.")
    if result["peft"]["why"] is not None:
        say(f"PEFT was not measured: {result['peft']['why']}.")
    for each in result["ceiling"]["passes"]:
        if each["why"] is not None:
            say(f"No ceiling for passes of {each['tokens']:,} tokens: {each['why']}.")
    if not all(pack["applied"] for pack in result["packs"]):
        say("A gradient was no number: some lanes did no optimizer step.")
    crossover = result["crossover"]["text"]
    say(f"{crossover[:1].upper()}{crossover[1:]}.")


def _rows(result: dict[str, Any]) -> Iterator[tuple[object, object]]:
    solo, peft, ceiling = result["one_by_one"], result["peft"], result["ceiling"]["passes"]
    yield (
        "run",
        f"{result['shape']}, {result['batch']} x {result['seq']} tokens a lane, rank "
        f"{result['rank']}, {result['precision']}, {_activations(result)}, attention by "
        f"{result['attention']}",
    )
    if solo is not None:
        yield "one lane", f"{_speed(solo)}, {_gigabytes(solo['device_peak_bytes'])} of VRAM"
    if peft["why"] is None:
        yield (
            "PEFT, eager",
            f"{_speed(peft)}, {_gigabytes(peft['device_peak_bytes'])} of VRAM, adapter in "
            f"{peft['adapter_precision']}",
        )
    for each in ceiling:
        if each["why"] is None:
            yield (
                "ceiling",
                f"{each['tokens_per_second']:,.0f} tokens/s, {each['tokens']:,} tokens in "
                f"{each['median_pass_seconds']:.3f} s",
            )
    if result["host_peak_bytes"] is not None:
        yield "RAM peak", _gigabytes(result["host_peak_bytes"])
    versions = result["versions"] | peft.get("versions", {})
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "on", f"{result['device']}, {named}"


def _pack_row(pack: dict[str, Any]) -> tuple[object, ...]:
    share = pack["share_of_ceiling"]
    return (
        pack["lanes"],
        f"{len(pack['pass_tokens'])} x {max(pack['pass_tokens']):,}",
        f"{pack['median_step_seconds']:.3f}",
        f"{pack['tokens_per_second']:,.0f}",
        f"{pack['tokens_per_second_per_lane']:,.0f}",
        _gain(pack["gain_over_one_by_one"]),
        _gain(pack["gain_over_peft"]),
        None if share is None else f"{share:.1%}",
        f"{pack['device_peak_bytes'] / 1e9:.2f}",
    )


def _activations(result: dict[str, Any]) -> str:
    return "activations kept" if result["activations"] == "keep" else "activations recomputed"


def _speed(alone: dict[str, Any]) -> str:
    return (
        f"{alone['tokens_per_second']:,.0f} tokens/s, {alone['median_step_seconds']:.3f} s a step"
    )


def _gain(gain: float | None) -> str | None:
    return None if gain is None else f"{gain:.2f}"


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
