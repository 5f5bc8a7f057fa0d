from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm, make_farm


@pytest.fixture
def farm(daemon: DaemonProcess, tiny_model: Path, tmp_path: Path) -> Farm:
    return make_farm(daemon, tiny_model, tmp_path)


@pytest.fixture
def hasty_farm(tiny_model: Path, tmp_path: Path) -> Iterator[Farm]:
    """A farm whose daemon gives a worker one second to leave."""
    daemon = DaemonProcess(tmp_path / "home", worker_stop_seconds="1")
    daemon.start()
    try:
        yield make_farm(daemon, tiny_model, tmp_path)
    finally:
        daemon.clean_up()
