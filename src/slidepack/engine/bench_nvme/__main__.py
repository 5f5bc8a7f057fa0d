"""`python -m slidepack.engine.bench_nvme`: prints one JSON object."""

import argparse
import json
import sys
from pathlib import Path

import msgspec
import torch

from slidepack.engine.bench_nvme.options import NvmeOptions
from slidepack.engine.bench_nvme.run import bench_nvme
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.lanes import THREADS

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run the measurement."""
    parser = argparse.ArgumentParser(prog="slidepack bench nvme")
    parser.add_argument("--folder", type=Path, action="append", required=True, dest="folders")
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--chunk-megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--transport", default="")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    values = vars(parser.parse_args(arguments))
    try:
        try:
            options = NvmeOptions(**values | {"folders": tuple(values["folders"])})
        except ValueError as error:
            raise SlidepackError(
                "RUN-SPEC-INVALID",
                "The measurement cannot be made.",
                why=str(error),
                fix="Change that option.",
            ) from error
        result = bench_nvme(options)
    except SlidepackError as error:
        sys.stdout.write(msgspec.json.encode({"error": error.report}).decode() + "\n")
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
