"""`slidepack bench packed`: LoRA lanes in one pass, against one by one, PEFT and the ceiling."""

import itertools
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from slidepack.cli.bench_process import run_benchmark
from slidepack.cli.options import Json
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
    activations: Annotated[
        str | None,
        typer.Option(help="keep or recompute; kept where left out, unless the base slides."),
    ] = None,
    base: Annotated[str, typer.Option(help="How the base is held: bf16 or nf4.")] = "bf16",
    slide: Annotated[
        bool, typer.Option("--slide", help="The base waits in RAM and slides through the card.")
    ] = False,
    weight_slots: Annotated[
        int | None,
        typer.Option(min=2, help="Sliding layers on the card at once; planned where left out."),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(help="device or host, for inputs of sliding layers; planned where left out."),
    ] = None,
    vram_cap: Annotated[
        float | None, typer.Option(help="VRAM that may be used, in GB; all where left out.")
    ] = None,
    no_solo: Annotated[
        bool, typer.Option("--no-solo", help="Without one lane alone, unless --lanes has it.")
    ] = False,
    no_peft: Annotated[bool, typer.Option("--no-peft", help="Without PEFT.")] = False,
    no_ceiling: Annotated[
        bool, typer.Option("--no-ceiling", help="Without the base's ceiling.")
    ] = False,
    device: Annotated[str | None, typer.Option(hidden=True)] = None,
    json_output: Json = False,
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
        "base": base,
        "weight-slots": weight_slots,
        "rows": rows,
        "vram-cap": vram_cap,
        "device": device,
    }
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    flags = {
        "--slide": slide,
        "--no-solo": no_solo,
        "--no-peft": no_peft,
        "--no-ceiling": no_ceiling,
    }
    given += [flag for flag, wanted in flags.items() if wanted]
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
    if result["slides"]:
        _print_filled(
            ("lanes", "slots", "rows", "resident tokens/s", "share of it", "RAM GB"),
            [_slide_row(pack) for pack in result["packs"]],
        )
    foretold = [pack for pack in result["packs"] if pack["predicted"]["why"] is None]
    if foretold:
        _print_filled(
            ("lanes", *(f"{what} predicted" for what in ("s/step", "VRAM GB", "RAM GB"))),
            [_predicted_row(pack) for pack in foretold],
        )
    _say_more(result)


def _print_filled(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """Print a table without the columns in which no row has anything."""
    filled = [any(row[place] is not None for row in rows) for place in range(len(columns))]
    print_table(
        tuple(itertools.compress(columns, filled)),
        (tuple(itertools.compress(row, filled)) for row in rows),
    )


def _say_more(result: dict[str, Any]) -> None:
    say("Gains are tokens a second over those of one lane alone, and of one adapter in PEFT.")
    if result["one_by_one"] is not None:
        say(f"Alone: {result['one_by_one']['note']}.")
    has_ceiling, has_peft = result["ceiling"]["passes"], result["peft"]["why"] is None
    if result["base"] != "bf16" and (has_ceiling or has_peft):
        say("Ceiling and PEFT are those of a base in bf16.")
    for reason in sorted(set(_unmeasured(result))):
        say(f"No resident base was measured: {reason}.")
    for reason in sorted({pack["predicted"]["why"] or "" for pack in result["packs"]} - {""}):
        say(f"Nothing is predicted: {reason}.")
    if any(pack["predicted"]["why"] is None for pack in result["packs"]):
        say(f"Predicted with: {result['rates']['source']}; in brackets by measured.")
    if result["peft"]["why"] is not None:
        say(f"PEFT was not measured: {result['peft']['why']}.")
    for each in result["ceiling"]["passes"]:
        if each["why"] is not None:
            say(f"No ceiling for passes of {each['tokens']:,} tokens: {each['why']}.")
    if not all(pack["applied"] for pack in result["packs"]):
        say("A gradient was no number: some lanes did no optimizer step.")
    crossover = result["crossover"]["text"]
    say(f"{crossover[:1].upper()}{crossover[1:]}.")


def _unmeasured(result: dict[str, Any]) -> Iterator[str]:
    for pack in result["packs"]:
        if pack["resident"] is not None and pack["resident"]["why"] is not None:
            yield pack["resident"]["why"]


def _rows(result: dict[str, Any]) -> Iterator[tuple[object, object]]:
    solo, peft, ceiling = result["one_by_one"], result["peft"], result["ceiling"]["passes"]
    yield (
        "run",
        f"{result['shape']}, {result['batch']} x {result['seq']} tokens a lane, rank "
        f"{result['rank']}, {result['precision']}, {_activations(result)}, attention by "
        f"{result['attention']}",
    )
    yield "base", _base(result)
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


def _slide_row(pack: dict[str, Any]) -> tuple[object, ...]:
    rate, share, peak = (
        pack[name]
        for name in ("resident_tokens_per_second", "share_of_resident", "host_peak_bytes")
    )
    return (
        pack["lanes"],
        pack["slide"]["slots"],
        pack["slide"]["rows"],
        None if rate is None else f"{rate:,.0f}",
        None if share is None else f"{share:.1%}",
        None if peak is None else f"{peak / 1e9:.2f}",
    )


def _predicted_row(pack: dict[str, Any]) -> tuple[object, ...]:
    predicted, error = pack["predicted"], pack["error"]
    return (
        pack["lanes"],
        _judged(f"{predicted['step_seconds']:.3f}", error["step_seconds"]),
        *(
            None
            if predicted[name] is None
            else _judged(f"{predicted[name] / 1e9:.2f}", error[name])
            for name in ("device_bytes", "host_bytes")
        ),
    )


def _judged(predicted: str, ratio: float | None) -> str:
    return predicted if ratio is None else f"{predicted} ({ratio:.2f})"


def _base(result: dict[str, Any]) -> str:
    held = f"{result['base']}, {_gigabytes(result['base_device_bytes'])} where the passes run"
    if not result["slides"]:
        return held
    return f"{held}, {_gigabytes(result['base_host_bytes'])} slide"


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
