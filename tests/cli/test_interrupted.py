"""Ctrl-C at any point: one line, status 130, nothing left running, and on it goes next time."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm
from support.tiny import chat_rows, write_jsonl
from support.waiting import PATIENCE, wait_until

_SCRIPT = Path(sys.executable).with_name("slidepack")


def _start(home: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [_SCRIPT, *arguments],
        env=os.environ | {"SLIDEPACK_HOME": str(home), "SLIDEPACK_PORT": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_listen_to_ctrl_c,
    )


def _listen_to_ctrl_c() -> None:
    """A shell that runs the tests in its background makes its children deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupt(process: "subprocess.Popen[str]") -> list[str]:
    """Press Ctrl-C, which a terminal sends to the whole group, and return the error's lines."""
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err
    return err.strip().splitlines()


def _of_home(home: Path) -> list[str]:
    """Return the processes that work on a data directory."""
    return [" ".join(command) for _, command in _working_on(home)]


def _importers(home: Path) -> list[psutil.Process]:
    return [process for process, command in _working_on(home) if "importer" in " ".join(command)]


def _working_on(home: Path) -> list[tuple[psutil.Process, list[str]]]:
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            about = [*command, process.environ().get("SLIDEPACK_HOME", "")]
            if process.status() != psutil.STATUS_ZOMBIE and any(str(home) in a for a in about):
                found.append((process, command))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _holds_ctrl_c_back(pid: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith("SigBlk"))
    return bool(int(mask, 16) & 1 << (signal.SIGINT - 1))


def test_while_the_command_line_loads(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from slidepack.cli.script import main; main()", "jobs", "list"],
        env=os.environ | {"SLIDEPACK_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_listen_to_ctrl_c,
    )
    wait_until(lambda: _holds_ctrl_c_back(process.pid), what="it loads")
    (line,) = _interrupt(process)
    assert line.startswith("RUN-INTERRUPTED: ")


@pytest.mark.full
def test_in_the_upload_of_a_big_file(served_farm: Farm, tmp_path: Path) -> None:
    daemon = served_farm.daemon
    fifo = tmp_path / "rows.jsonl"
    # A pipe of which nobody writes the end keeps the upload going for as long as it takes.
    os.mkfifo(fifo)
    before = daemon.api("GET", "/datasets")
    process = _start(daemon.home, "jobs", "add", str(fifo), "--model", served_farm.model)
    with fifo.open("wb") as writer:
        writer.write(b'{"prompt": "p", "completion": "c"}\n' * 1000)
        writer.flush()
        uploads = daemon.home / "uploads"
        wait_until(lambda: list(uploads.iterdir()), what="the upload has begun")
        (line,) = _interrupt(process)
    assert line.startswith("RUN-INTERRUPTED: ")
    wait_until(lambda: not list(uploads.iterdir()), what="the part is gone")
    assert daemon.api("GET", "/datasets") == before
    whole = write_jsonl(tmp_path / "whole.jsonl", chat_rows(9))
    # Of so many steps that it can be cancelled.
    add = ("jobs", "add", str(whole), "--model", served_farm.model, "--steps", "5000")
    process = _start(daemon.home, *add, "--json")
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    served_farm.act(json.loads(out)["id"], "cancel")


@pytest.mark.full
def test_while_a_model_is_added(daemon: DaemonProcess, smollm2_gguf: Path) -> None:
    process = _start(daemon.home, "models", "add", str(smollm2_gguf), "--json")
    wait_until(
        lambda: any(m["done"] for m in daemon.api("GET", "/models")), what="the import has begun"
    )
    # It would be done soon: it is held up until what is looked at has happened.
    (importer,) = _importers(daemon.home)
    importer.suspend()
    (line,) = _interrupt(process)
    assert line.startswith("RUN-INTERRUPTED: ")
    (model,) = daemon.api("GET", "/models")
    assert model["state"] == "importing", "the daemon goes on with it"
    # A stop waits for the first look at torch, and the import would be done by then.
    wait_until(lambda: daemon.api("GET", "/hardware")["software"], what="torch was looked at")
    # Stopped in the middle, it ends the import too, and the next daemon begins it again.
    importer.resume()
    daemon.stop()
    assert _of_home(daemon.home) == []
    assert list((daemon.home / "models").iterdir()) == []
    daemon.start()
    again = daemon.api("POST", "/models", json={"source": str(smollm2_gguf)})
    assert (again["id"], again["state"]) == (model["id"], "importing")
    wait_until(lambda: any("importer" in name for name in _of_home(daemon.home)))
    # Off the list, its importer ends.
    daemon.api("DELETE", f"/models/{model['id']}")
    wait_until(lambda: not any("importer" in name for name in _of_home(daemon.home)))
    assert daemon.api("GET", "/models") == []
    daemon.stop()
    assert "Traceback" not in daemon.log


def _daemon_api(home: Path, path: str) -> Any:
    try:
        return DaemonProcess(home).api("GET", path)
    except Exception:  # noqa: BLE001  # not there yet, or going
        return None


def _demo_is(home: Path, reached: Callable[[Any], bool]) -> Callable[[], bool]:
    def check() -> bool:
        jobs = _daemon_api(home, "/jobs")
        return bool(jobs) and reached(jobs[0])

    return check


def _is_importing(home: Path) -> bool:
    models = _daemon_api(home, "/models")
    return bool(models) and models[0]["done"] > 0


def _demo_interrupted(home: Path, when: Callable[[], object], what: str) -> None:
    process = _start(home, "demo", "--headless", "--json")
    wait_until(when, what=what)
    assert _interrupt(process)[-1].startswith("RUN-INTERRUPTED: ")
    assert _of_home(home) == []
    assert not (home / "daemon.json").exists()


def _prepare(home: Path, gguf: Path) -> Path:
    (home / "downloads").mkdir(parents=True)
    (home / "downloads" / gguf.name).symlink_to(gguf)
    return home


@pytest.mark.full
def test_in_the_demo_before_its_job(tmp_path: Path, smollm2_gguf: Path) -> None:
    home = _prepare(tmp_path / "home", smollm2_gguf)
    _demo_interrupted(home, (home / "daemon.log").exists, "the daemon is being started")
    _demo_interrupted(home, lambda: _is_importing(home), "the model is being imported")


@pytest.mark.full
def test_in_the_demos_job(tmp_path: Path, smollm2_gguf: Path) -> None:
    home = _prepare(tmp_path / "home", smollm2_gguf)
    _demo_interrupted(home, _demo_is(home, lambda job: job["state"] == "starting"), "it starts")
    _demo_interrupted(home, _demo_is(home, lambda job: job["step"] >= 1), "it trains")
    _demo_interrupted(home, _demo_is(home, lambda job: job["step"] >= 3), "it trains on")
    with DaemonProcess(home).start() as daemon:
        (job,) = daemon.api("GET", "/jobs")
        attempts = daemon.attempts(job["id"])
    assert job["ended_at"] is None
    steps = [attempt["first_step"] for attempt in attempts if attempt["first_step"]]
    assert steps == sorted(set(steps)), "each attempt went on from a checkpoint"


def test_in_a_download_nothing_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    pip = tmp_path / "site" / "pip"
    pip.mkdir(parents=True)
    (pip / "__init__.py").touch()
    # A stand-in for pip that downloads for ever; it lives outside the package index.
    (pip / "__main__.py").write_text(
        "import pathlib, signal, sys\n"
        "pathlib.Path(sys.argv[sys.argv.index('--dest') + 1], 'part').touch()\n"
        "signal.pause()\n"
    )
    process = subprocess.Popen(
        [_SCRIPT, "demo", "--headless", "--json"],
        env=os.environ | {"SLIDEPACK_HOME": str(home), "PYTHONPATH": str(pip.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_listen_to_ctrl_c,
    )
    wait_until(lambda: list((home / "downloads").glob("*/part")), what="the download runs")
    assert _interrupt(process)[-1].startswith("RUN-INTERRUPTED: ")
    assert list((home / "downloads").iterdir()) == []
    assert _of_home(home) == []


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_benchmark_of_drives_leaves_nothing_on_them(
    number: signal.Signals, tmp_path: Path
) -> None:
    folder = tmp_path / "drive"
    sizes = ("--gigabytes=0.1", "--chunk-megabytes=4", "--rounds=100000", "--transport=ring")
    process = _start(tmp_path / "home", "bench", "nvme", f"--folder={folder}", *sizes)
    with process:
        # The measurement has begun: it has written something.
        wait_until(
            lambda: [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size],
            what="it writes",
        )
        child = psutil.Process(process.pid).children()[0]
        # A closed terminal and Ctrl-C tell the whole group, `kill` one process.
        if number is signal.SIGTERM:
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, (out, err)
    assert "Traceback" not in err
    assert not list(folder.iterdir())
    assert not child.is_running()
