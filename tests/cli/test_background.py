import os
import signal
from pathlib import Path

import pytest
from support.daemons import DaemonProcess

from slidepack.cli.background import _ctrl_c_held_back, running_daemon
from slidepack.engine.contract.errors import SlidepackError


def test_a_failure_of_the_body_comes_out_and_starts_nothing(daemon: DaemonProcess) -> None:
    with (
        pytest.raises(SlidepackError, match="RUN-FAILED"),
        running_daemon(daemon.home) as (client, child),
    ):
        assert child is None
        assert client.get("/health")["status"] == "ready"
        raise SlidepackError("RUN-FAILED", "The job is paused.")
    assert daemon.api("GET", "/health")["status"] == "ready", "the daemon found is left alone"


@pytest.mark.full
def test_a_daemon_that_cannot_start_says_why(tmp_path: Path, daemon: DaemonProcess) -> None:
    home = tmp_path / "blocked"
    home.mkdir()
    (home / "slidepack.db").mkdir()
    with pytest.raises(SlidepackError, match="DISK-UNWRITABLE"), running_daemon(home):
        raise AssertionError("it must not come this far")


def test_ctrl_c_while_a_process_starts_comes_once_it_is_known() -> None:
    known = False
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), _ctrl_c_held_back():
        os.kill(os.getpid(), signal.SIGINT)
        known = True
    assert known
    with _ctrl_c_held_back():
        pass
    assert signal.getsignal(signal.SIGINT) is before
