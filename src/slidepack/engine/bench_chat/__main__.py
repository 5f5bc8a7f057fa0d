"""Answers a second beside transformers: `python -P -m slidepack.engine.bench_chat OPTIONS`.

The options and the answer are JSON.
"""

import importlib
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from slidepack.engine.bench_chat.options import ChatOptions, Rate
from slidepack.engine.bench_chat.ours import Ours, write_adapters
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.shape import read_shape

_Measure = Callable[[Sequence[str]], Rate]


def main(arguments: list[str]) -> int:
    """Measure, and print one JSON object."""
    try:
        result = measure(_options(arguments))
    except SlidepackError as error:
        sys.stdout.write(msgspec.json.encode({"error": error.report}).decode() + "\n")
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    return 0


def measure(options: ChatOptions) -> dict[str, Any]:
    """Let both sides answer in turns; return the settings and the medians.

    Raises:
        SlidepackError: the model cannot be read, or an answer failed.
    """
    torch.set_num_threads(options.threads)
    shape = read_shape(Path(options.model))
    theirs = _theirs()
    with tempfile.TemporaryDirectory() as scratch:
        adapters = write_adapters(options, shape, Path(scratch))
        names = [path.name for path in adapters]
        sides: dict[str, dict[str, _Measure]] = {
            "one": {"ours": Ours(options, ()).measure},
            "voices": {"ours": Ours(options, adapters).measure},
        }
        if theirs is not None:
            sides["one"]["theirs"] = theirs.Theirs(options, ()).measure
            sides["voices"]["theirs"] = theirs.Theirs(options, adapters).measure
        cases = {
            "one": _medians(sides["one"], ["base"], options.rounds),
            "voices": _medians(sides["voices"], names, options.rounds),
        }
    on_gpu = torch.device(options.device).type == "cuda"
    return {
        "options": options,
        "device": torch.cuda.get_device_name(options.device) if on_gpu else "cpu",
        "precision": "bfloat16" if on_gpu else "float32",
        "versions": {"torch": str(torch.__version__)} | (theirs.versions() if theirs else {}),
        "cases": cases,
    }


def _medians(
    sides: dict[str, _Measure], voices: Sequence[str], rounds: int
) -> dict[str, dict[str, Any]]:
    """Measure each side in each round, after one round to warm up."""
    rates: dict[str, list[Rate]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            asked = () if name == "theirs" and list(voices) == ["base"] else voices
            rate = side(asked)
            if number:
                rates[name].append(rate)
    return {
        name: {
            "tokens_per_second": statistics.median(rate.tokens_per_second for rate in found),
            "first_token_seconds": statistics.median(rate.first_token_seconds for rate in found),
            "rounds": found,
        }
        for name, found in rates.items()
    }


def _theirs() -> Any:
    """Return the other side's module; None where its libraries are not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("transformers", "peft")):
        return None
    return importlib.import_module("slidepack.engine.bench_chat.theirs")


def _options(arguments: list[str]) -> ChatOptions:
    try:
        (text,) = arguments
        return msgspec.json.decode(text, type=ChatOptions)
    except ValueError as error:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The measurement cannot be made.",
            why=str(error),
            fix="Change that option.",
        ) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
