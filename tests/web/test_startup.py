"""How a daemon starts, refuses to start, and leaves."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm
from support.waiting import PATIENCE, wait_until

# sqlite-utils loads numpy where it is installed, so that one is not among them.
_HEAVY = ("torch", "triton", "tokenizers", "gguf", "transformers", "safetensors")
_SCRIPT = Path(sys.executable).with_name("slidepack")


def _start(home: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "slidepack.web"],
        env=os.environ | {"SLIDEPACK_HOME": str(home), "SLIDEPACK_PORT": "0"} | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def _assert_refused(done: "subprocess.CompletedProcess[str]", code: str, exit_code: int) -> None:
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{code}: ")
    assert done.returncode == exit_code
    assert done.stdout == ""


def refused_start(
    home: Path, code: str, exit_code: int, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Start a daemon that must refuse to run."""
    done = _start(home, **variables)
    _assert_refused(done, code, exit_code)
    return done


def test_a_second_daemon_is_refused_and_the_first_goes_on(served_farm: Farm) -> None:
    daemon = served_farm.daemon
    address = daemon.address
    done = _start(daemon.home)
    _assert_refused(done, "DAEMON-RUNNING", 70)
    assert f"held by process {address.pid}" in done.stderr
    assert daemon.address == address
    assert daemon.api("GET", "/health")["status"] == "ready"


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = _start(tmp_path, SLIDEPACK_PORT=str(port))
    _assert_refused(done, "DAEMON-PORT-IN-USE", 71)
    assert f"Port {port} is taken" in done.stderr
    assert not (tmp_path / "daemon.json").exists()
    with DaemonProcess(tmp_path) as daemon:
        assert daemon.api("GET", "/health")["status"] == "ready", "the lock was let go"


@pytest.mark.parametrize(
    ("toml", "variables"),
    [
        ("port = 'many'\n", {"SLIDEPACK_DISK_FLOOR_GB": "1"}),
        ("colour = 'red'\n", {}),
        ("port = [\n", {}),
        ("", {"SLIDEPACK_PORT": "70000"}),
        ("", {"SLIDEPACK_DISK_FLOOR_GB": "nan"}),
        ("", {"SLIDEPACK_WORKER_STOP_SECONDS": "inf"}),
        ("", {"SLIDEPACK_WORKER_STOP_SECONDS": "0"}),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, toml: str, variables: dict[str, str]) -> None:
    (tmp_path / "settings.toml").write_text(toml)
    # The variable wins over the file, so it must not mend the file's value.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLIDEPACK_")}
    done = subprocess.run(
        [sys.executable, "-m", "slidepack.web"],
        env=environment | {"SLIDEPACK_HOME": str(tmp_path)} | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    _assert_refused(done, "DAEMON-SETTINGS", 77)


@pytest.mark.full
def test_the_address_is_the_owners_and_gone_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    began = time.monotonic()
    with DaemonProcess(home) as daemon:
        seconds = time.monotonic() - began
        with capsys.disabled():
            sys.stdout.write(f"\nThe daemon was ready in {seconds:.2f} s.\n")
        # What it took of a processor: beside others it waits for one, and that is not its doing.
        used = psutil.Process(daemon.address.pid).cpu_times()
        assert used.user + used.system < 8, "2 s on an idle machine"
        address = home / "daemon.json"
        assert stat.S_IMODE(address.stat().st_mode) == 0o600
        assert stat.S_IMODE((home / "slidepack.db").stat().st_mode) == 0o600
        for folder in ("models", "datasets", "jobs", "imports", "uploads"):
            assert stat.S_IMODE((home / folder).stat().st_mode) == 0o700
        assert daemon.stop() == 0
        assert not address.exists()
        # A daemon that died left its address; the next one writes its own.
        daemon.start()
        old = daemon.address
        daemon.kill()
        assert address.exists()
        daemon.start()
        assert daemon.address.token != old.token
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.log


def test_ctrl_c_while_it_loads_is_no_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [_SCRIPT, "serve"],
        env=os.environ | {"SLIDEPACK_HOME": str(tmp_path), "SLIDEPACK_PORT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running = psutil.Process(process.pid)
    wait_until(lambda: "slidepack.web" in running.cmdline(), what="the daemon took over")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert not (tmp_path / "daemon.json").exists()
    assert "http" in out or out == ""


def test_nothing_heavy_is_imported() -> None:
    names = ", ".join(repr(name) for name in _HEAVY)
    code = f"import sys, slidepack.web.__main__; print([n for n in ({names},) if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_after_pages_and_a_job_it_is_still_small(
    served_farm: Farm, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = served_farm.daemon
    with daemon.http() as client:
        for path in ("/", "/jobs/1", "/parts/hardware", "/api/v1/jobs/1", "/api/v1/hardware"):
            for _ in range(10):
                assert client.get(path).status_code == 200
    assert daemon.process is not None
    process = psutil.Process(daemon.process.pid)
    rss = process.memory_info().rss / 1e6
    with capsys.disabled():
        sys.stdout.write(f"\nThe daemon's RSS after pages and a job: {rss:.1f} MB.\n")
    assert rss <= 120
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    for library in ("libtorch", "tokenizers", "triton", "safetensors"):
        assert library not in maps
