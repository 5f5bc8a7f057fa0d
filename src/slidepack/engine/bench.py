"""Timings of the engine with random weights: `python -m slidepack.engine.bench`."""

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

import msgspec
import torch

from slidepack.engine.bench_kernels.run import bench_kernels, bench_lora_linear, versions
from slidepack.engine.bench_nvme.options import NvmeOptions
from slidepack.engine.bench_nvme.run import bench_nvme
from slidepack.engine.bench_packed.options import DEFAULT_LANES, PackedOptions, lane_counts
from slidepack.engine.bench_packed.run import bench_packed
from slidepack.engine.bench_slide.options import SlideOptions, default_threads
from slidepack.engine.bench_slide.run import bench_slide
from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.bench_sweep.random_model import write_random_model
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.pack import LaneStep, Pack
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.loading import random_decoder
from slidepack.engine.nvme.lanes import THREADS
from slidepack.engine.tune.run import bench_tune

__all__ = ["SHAPES", "bench_lora", "main"]

_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_Options = TypeVar("_Options")


def bench_lora(
    shape_name: str, *, batch: int, seq: int, rank: int, steps: int, device: str
) -> dict[str, Any]:
    """Time LoRA steps, all linears, activations kept, on random rows of equal length.

    Returns:
        The settings and the median: seconds a step, tokens a second, peak device bytes.
    """
    shape = SHAPES[shape_name]
    place = torch.device(device)
    on_gpu = place.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    decoder = random_decoder(shape, place, dtype, seed=0)
    policies: tuple[ActivationPolicy, ...] = tuple("keep" for _ in range(shape.num_layers))
    choice = layer_attention(shape, place, dtype)
    pack = Pack(decoder, choice, policies, batch * seq)
    pack.join("lane", LoraMethod(rank=rank), seed=0)
    generator = torch.Generator().manual_seed(0)
    rows = [
        EncodedRow(
            line,
            tuple(torch.randint(0, shape.vocab, (seq,), generator=generator).tolist()),
            (True,) * seq,
        )
        for line in range(batch)
    ]
    seconds = []
    for step in range(steps + 3):
        work = LaneStep(rows=rows, optim=OptimSpec(), step=step, total_steps=steps + 3, seed=0)
        begun = time.perf_counter()
        pack.step({"lane": work})
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    median = statistics.median(seconds[3:])
    return {
        "shape": shape_name,
        "device": torch.cuda.get_device_name(place) if on_gpu else "cpu",
        "precision": str(dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "attention": choice.path,
        "batch": batch,
        "seq": seq,
        "rank": rank,
        "steps": steps,
        "median_step_seconds": median,
        "tokens_per_second": batch * seq / median,
        "peak_device_bytes": torch.cuda.max_memory_allocated(place) if on_gpu else 0,
    }


def main(arguments: list[str]) -> int:
    """Run one benchmark and print one JSON object."""
    parser = argparse.ArgumentParser(prog="slidepack bench")
    commands = parser.add_subparsers(required=True, dest="command")
    lora = commands.add_parser("lora", help="LoRA steps of one lane")
    lora.add_argument("--shape", choices=sorted(SHAPES), default="smollm2-135m")
    lora.add_argument("--batch", type=int, default=8)
    lora.add_argument("--seq", type=int, default=128)
    lora.add_argument("--rank", type=int, default=8)
    lora.add_argument("--steps", type=int, default=20)
    default_device = "cuda:0" if torch.cuda.is_available() else "cpu"
    lora.add_argument("--device", default=default_device)
    _add_slide(commands.add_parser("slide", help="full fine-tuning by sliding layers"))
    _add_packed(commands.add_parser("packed", help="LoRA lanes in one pass over one base"))
    _add_nvme(commands.add_parser("nvme", help="state on drives against the bare drives"))
    commands.add_parser("kernels", help="the fused operations at the sizes of Llama 8B")
    random = commands.add_parser("model", help="write a model with random weights")
    random.add_argument("--shape", required=True)
    random.add_argument("--to", type=Path, required=True)
    tune = commands.add_parser("tune", help="sizes of the kernels' programs for this GPU")
    tune.add_argument("--write", action="store_true", help="put them into the tile table")
    try:
        result = _result(parser.parse_args(arguments))
    except SlidepackError as error:
        sys.stdout.write(msgspec.json.encode({"error": error.report}).decode() + "\n")
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def _leave(number: int, _frame: FrameType | None) -> None:
    """Leave in order: what was written to drives is deleted, and no second signal disturbs that."""
    for each in _ENDS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _add_nvme(nvme: argparse.ArgumentParser) -> None:
    nvme.add_argument("--folder", type=Path, action="append", required=True, dest="folders")
    nvme.add_argument("--gigabytes", type=float, default=4.0)
    nvme.add_argument("--chunk-megabytes", type=int, default=64)
    nvme.add_argument("--rounds", type=int, default=5)
    nvme.add_argument("--threads", type=int, default=THREADS)
    nvme.add_argument("--transport", default="")
    nvme.add_argument("--deepspeed", action="store_true")
    nvme.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def _add_slide(slide: argparse.ArgumentParser) -> None:
    slide.add_argument("--shape", required=True)
    slide.add_argument("--batch", type=int, required=True)
    slide.add_argument("--seq", type=int, required=True)
    slide.add_argument("--micro-tokens", type=int, default=8192)
    slide.add_argument("--steps", type=int, default=6)
    slide.add_argument("--warm-up", type=int, default=2)
    slide.add_argument("--vram-cap", type=float, dest="vram_cap_gb")
    slide.add_argument("--optimizer", choices=("cpu", "gpu", "auto"), default="auto")
    slide.add_argument("--moments", choices=("fp32", "bf16", "int8"), default="fp32")
    slide.add_argument("--clip", type=float, default=0.0)
    slide.add_argument("--rows", choices=("device", "host"))
    slide.add_argument("--weight-slots", type=int)
    slide.add_argument("--grad-slots", type=int)
    slide.add_argument("--threads", type=int, default=default_threads())
    slide.add_argument("--alias-layers", type=int)
    slide.add_argument("--nvme-folder")
    slide.add_argument("--nvme-share", type=float, default=1.0)
    slide.add_argument("--ram-cap", type=float, dest="ram_cap_gb")
    slide.add_argument("--device", choices=("cpu", "cuda"), default="cuda")


def _add_packed(packed: argparse.ArgumentParser) -> None:
    packed.add_argument("--shape", required=True)
    packed.add_argument("--lanes", default=",".join(map(str, DEFAULT_LANES)))
    packed.add_argument("--batch", type=int, required=True)
    packed.add_argument("--seq", type=int, required=True)
    packed.add_argument("--rank", type=int, required=True)
    packed.add_argument("--steps", type=int, default=10)
    packed.add_argument("--warm-up", type=int, default=3)
    packed.add_argument("--max-tokens", type=int)
    packed.add_argument("--activations")
    packed.add_argument("--base", default="bf16")
    packed.add_argument("--slide", action="store_true")
    packed.add_argument("--weight-slots", type=int)
    packed.add_argument("--rows")
    packed.add_argument("--vram-cap", type=float, dest="vram_cap_gb")
    packed.add_argument("--no-solo", action="store_false", dest="solo")
    packed.add_argument("--no-peft", action="store_false", dest="peft")
    packed.add_argument("--no-ceiling", action="store_false", dest="ceiling")
    packed.add_argument("--device", default="cuda")


def _nvme_options(folders: list[Path], **values: Any) -> NvmeOptions:
    return NvmeOptions(folders=tuple(folders), **values)


def _packed_options(lanes: str, **values: Any) -> PackedOptions:
    return PackedOptions(lanes=lane_counts(lanes), **values)


def _asked(kind: Callable[..., _Options], options: argparse.Namespace) -> _Options:
    """Return a measurement's options, or say what is wrong with them."""
    values = {name: value for name, value in vars(options).items() if name != "command"}
    try:
        return kind(**values)
    except ValueError as error:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The measurement cannot be made.",
            why=str(error),
            fix="Change that option.",
        ) from error


def _result(options: argparse.Namespace) -> dict[str, Any]:
    if options.command == "nvme":
        return bench_nvme(_asked(_nvme_options, options))
    if options.command == "slide":
        return bench_slide(_asked(SlideOptions, options))
    if options.command == "packed":
        return bench_packed(_asked(_packed_options, options))
    if options.command == "tune":
        return bench_tune(write=options.write)
    if options.command == "model":
        return write_random_model(options.shape, options.to)
    if options.command == "kernels":
        operations, lora = bench_kernels(), bench_lora_linear()
        return {
            "device": torch.cuda.get_device_name(),
            "versions": versions(),
            "operations": operations,
            "lora": lora,
        }
    return bench_lora(
        options.shape,
        batch=options.batch,
        seq=options.seq,
        rank=options.rank,
        steps=options.steps,
        device=options.device,
    )


if __name__ == "__main__":
    for signalled in _ENDS:
        signal.signal(signalled, _leave)
    sys.exit(main(sys.argv[1:]))
