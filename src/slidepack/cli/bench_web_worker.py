"""A worker that trains nothing: `python -P -m slidepack.cli.bench_web_worker RUN_FOLDER RATE`.

It appends a step's event RATE times a second, as a training worker does, until it is asked to
leave.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

from slidepack.cli.bench_jobs import progress_event
from slidepack.engine.contract.errors import EXIT_YIELDED
from slidepack.engine.contract.events import AnyEvent, Started, Yielded, encode_event
from slidepack.engine.contract.runfolder import RunFolder

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Tell steps until SIGTERM comes or the benchmark is gone."""
    root, rate = arguments
    folder, leaving, parent = RunFolder(Path(root)), threading.Event(), os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    steps = folder.read_spec().steps
    with folder.events.open("ab", buffering=0) as file:
        _tell(file, _started(steps))
        begun, step = time.monotonic(), 0
        while os.getppid() == parent:
            # By the clock, so that no delay adds up.
            if leaving.wait(max(0.0, begun + step / float(rate) - time.monotonic())):
                break
            step += 1
            _tell(file, progress_event(step, steps, time.time()))
        _tell(file, Yielded(at=time.time(), reason="it was asked to leave", seconds=0.0))
    return EXIT_YIELDED


def _tell(file: BinaryIO, event: AnyEvent) -> None:
    file.write(encode_event(event))


def _started(steps: int) -> Started:
    return Started(
        at=time.time(),
        pid=os.getpid(),
        device="cpu",
        precision="fp32",
        total_steps=steps,
        from_step=0,
        train_rows=1000,
        eval_rows=0,
        trainable_params=1,
        attention="",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
