"""A real daemon process with its own data directory."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from slidepack.daemon.instance import DaemonAddress, read_address
from slidepack.engine.contract.errors import SlidepackError
from support.waiting import PATIENCE, wait_until


class DaemonProcess:
    """Starts, kills and asks one daemon."""

    def __init__(self, home: Path, **settings: str) -> None:
        """Name the data directory; `settings` become SLIDEPACK_ variables."""
        self.home = home
        self.environment = os.environ | {
            "SLIDEPACK_HOME": str(home),
            "SLIDEPACK_PORT": "0",
            "SLIDEPACK_DISK_FLOOR_GB": "0",
            "SLIDEPACK_RETRY_SECONDS": "0.1",
            **{f"SLIDEPACK_{name.upper()}": value for name, value in settings.items()},
        }
        # Where the tests themselves run in a service, the daemon would keep its link to itself.
        self.environment.pop("JOURNAL_STREAM", None)
        self.process: subprocess.Popen[str] | None = None
        self.link = ""

    def start(self) -> "DaemonProcess":
        """Start the daemon and wait until it answers; `link` is its one-time login link."""
        self.home.mkdir(parents=True, exist_ok=True)
        with (self.home / "stderr.log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "slidepack.web"],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.link = self.process.stdout.readline().strip()
        assert self.link.startswith("http://127.0.0.1:"), (self.home / "stderr.log").read_text()
        wait_until(self._answers, what="the daemon answers")
        return self

    def __enter__(self) -> "DaemonProcess":
        """Return the daemon, started."""
        return self if self.process else self.start()

    def __exit__(self, *_exc: object) -> None:
        """End it and its workers."""
        self.clean_up()

    def _answers(self) -> bool:
        try:
            return bool(self.api("GET", "/health")["status"] == "ready")
        except (SlidepackError, httpx.TransportError):
            return False

    @property
    def address(self) -> DaemonAddress:
        """Where it is."""
        return read_address(self.home)

    def http(self) -> httpx.Client:
        """Return a client of the API with the bearer token."""
        address = self.address
        return httpx.Client(
            base_url=address.url,
            headers={"authorization": f"Bearer {address.token}"},
            trust_env=False,
            timeout=PATIENCE,
        )

    def api(self, method: str, path: str, **arguments: Any) -> Any:
        """Call the API and return its JSON; any status but 2xx fails."""
        with self.http() as client:
            response = client.request(method, f"/api/v1{path}", **arguments)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def add_model(self, source: Path) -> str:
        """Add a model, wait until it is ready, return its id."""
        model = self.api("POST", "/models", json={"source": str(source)})

        def settled() -> Any:
            now = self.api("GET", f"/models/{model['id']}")
            return now if now["state"] != "importing" else None

        settled_model = wait_until(settled, what="the model is imported")
        assert settled_model["state"] == "ready", settled_model
        return str(settled_model["id"])

    def upload(self, path: Path) -> int:
        """Upload a data file and return the dataset's id."""
        name = path.name
        record = self.api("PUT", "/datasets", params={"name": name}, content=path.read_bytes())
        return int(record["id"])

    def job(self, job_id: int) -> Any:
        """Return the job's record."""
        return self.api("GET", f"/jobs/{job_id}")["job"]

    def wait_for(self, job_id: int, *states: str, seconds: float = PATIENCE) -> Any:
        """Wait until the job is in one of the states and return its record."""

        def reached() -> Any:
            job = self.job(job_id)
            return job if job["state"] in states else None

        return wait_until(reached, seconds=seconds, what=f"job {job_id} is {states}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let no job begin in the block: all that is queued there is there before the first."""
        self.api("POST", "/queue/pause")
        try:
            yield
        finally:
            self.api("POST", "/queue/resume")

    def attempts(self, job_id: int) -> Any:
        """Return the job's attempts."""
        return self.api("GET", f"/jobs/{job_id}")["attempts"]

    def worker_log(self, job_id: int) -> str:
        """Return the end of the logs of the job's workers."""
        with self.http() as client:
            return client.get(f"/api/v1/jobs/{job_id}/log").text

    @property
    def log(self) -> str:
        """What the daemon wrote to its log so far."""
        return (self.home / "stderr.log").read_text()

    def kill(self) -> None:
        """Kill the daemon as a crash would."""
        assert self.process is not None
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """Stop the daemon in good order and return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=PATIENCE)
        return self._reap()

    def _reap(self) -> int:
        assert self.process is not None
        code = self.process.wait(timeout=PATIENCE)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        return code

    def workers(self) -> list[psutil.Process]:
        """Return the worker processes of this data directory."""
        found = []
        for process in psutil.process_iter():
            try:
                command = process.cmdline()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if "slidepack.engine.worker" in command and any(
                part.startswith(str(self.home)) for part in command
            ):
                found.append(process)
        return found

    def clean_up(self) -> None:
        """End the daemon and every worker of its data directory."""
        if self.process is not None:
            self.kill()
        for worker in self.workers():
            worker.kill()
