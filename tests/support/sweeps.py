"""Lanes of a sweep, judged in processes of their own."""

from multiprocessing.synchronize import Barrier
from pathlib import Path

from slidepack.engine.contract.sweep import Halving
from slidepack.engine.lora.halving import Rungs


def judge_many(spec: Halving, path: Path, lanes: list[str], start: Barrier) -> None:
    """Judge lanes at the first rung, one after another; the loss of each is its name."""
    rungs = Rungs.restored(spec, path)
    start.wait()
    for lane in lanes:
        rungs.judge(lane, 1, float(lane))
