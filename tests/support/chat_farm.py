"""A daemon on the CPU with a completed job to chat with."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.daemons import DaemonProcess
from support.queueing import Farm, make_farm

CHAT = "slidepack.engine.chat"
"""The module that a chat's process runs."""


@contextmanager
def chat_farm(model: Path, folder: Path) -> Iterator[Farm]:
    """Yield a farm whose job 1 is completed."""
    daemon = DaemonProcess(folder / "home")
    daemon.start()
    try:
        farm = make_farm(daemon, model, folder, rows=8)
        farm.finish(farm.queue(steps=2, eval_every_steps=0, sample_prompts=[], lr=0.05))
        yield farm
    finally:
        daemon.clean_up()
