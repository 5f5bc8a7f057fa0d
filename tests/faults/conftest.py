from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm, make_farm

BRIEF_SECONDS = 4


@pytest.fixture
def farm(tiny_model: Path, tmp_path: Path) -> Iterator[Farm]:
    """A farm whose daemon runs one job at a time, each in a worker of its own."""
    yield from _farm(tiny_model, tmp_path, packing="off")


@pytest.fixture
def packing_farm(tiny_model: Path, tmp_path: Path) -> Iterator[Farm]:
    """A farm whose daemon packs, so that no job's bits depend on the others."""
    yield from _farm(tiny_model, tmp_path, packing="exact")


@pytest.fixture
def hasty_farm(tiny_model: Path, tmp_path: Path) -> Iterator[Farm]:
    """A farm whose daemon gives a worker one second to leave."""
    yield from _farm(tiny_model, tmp_path, packing="off", worker_stop_seconds="1")


@pytest.fixture
def brief_farm(tiny_model: Path, tmp_path: Path) -> Iterator[Farm]:
    """A farm whose daemon gives a worker some seconds to leave."""
    yield from _farm(tiny_model, tmp_path, packing="off", worker_stop_seconds=str(BRIEF_SECONDS))


def _farm(model: Path, folder: Path, **settings: str) -> Iterator[Farm]:
    daemon = DaemonProcess(folder / "home", **settings)
    daemon.start()
    try:
        yield make_farm(daemon, model, folder)
    finally:
        daemon.clean_up()
