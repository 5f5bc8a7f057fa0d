"""`slidepack bench web`: how fast the page and the API answer, and what they cost."""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import httpx
import msgspec
import psutil
import typer

from slidepack.cli.background import running_daemon
from slidepack.cli.bench_jobs import wait_until_settled
from slidepack.cli.bench_process import run_benchmark
from slidepack.cli.bench_web_home import BenchHome, fill, training_job
from slidepack.cli.bench_web_listeners import listen
from slidepack.cli.bench_web_requests import times_of, upload
from slidepack.cli.client import DaemonClient
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.daemon.instance import read_address
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["web"]

_BROWSER_MODULE: Final = "slidepack.cli.bench_web_browser"
_CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_EVENTS_PER_SECOND: Final = 10.0
_SPARE_BYTES: Final = 2_000_000_000
"""Beside an upload: the database, and what a daemon leaves free."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was measured."""

    name: str
    value: float
    unit: str
    bar: float | None = None
    """What it should not be above."""
    passed: bool | None = None
    """None where there is no bar."""


class _Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything there is."""

    jobs: int
    points: int
    requests: int
    clients: int
    seconds: float
    upload_gigabytes: float
    rounds: int


def web(
    jobs: Annotated[int, typer.Option(min=2, help="In the database; half have ended.")] = 10_000,
    points: Annotated[int, typer.Option(min=2, help="Steps of the longest series.")] = 100_000,
    requests: Annotated[int, typer.Option(min=2, help="For each address.")] = 200,
    clients: Annotated[int, typer.Option(min=1, help="That listen to events at once.")] = 200,
    seconds: Annotated[float, typer.Option(min=1.0, help="For which they listen.")] = 30.0,
    upload_gigabytes: Annotated[float, typer.Option(min=0.0, help="To send; 0: none.")] = 5.0,
    rounds: Annotated[int, typer.Option(min=1, help="Of each visit in Chromium.")] = 5,
    json_output: Json = False,
) -> None:
    """Time the dashboard against its bars, with a daemon and a directory of its own."""
    sizes = _Sizes(
        jobs=jobs,
        points=points,
        requests=requests,
        clients=clients,
        seconds=seconds,
        upload_gigabytes=upload_gigabytes,
        rounds=rounds,
    )
    with tempfile.TemporaryDirectory(prefix="slidepack-bench-") as folder:
        _require_room(Path(folder), sizes)
        try:
            figures, notes = _measure(Path(folder), sizes)
        except httpx.HTTPError as error:
            raise _refused(error, Path(folder)) from error
    if json_output:
        print_json({"options": sizes, "figures": figures, "notes": notes})
        return
    print_table(("figure", "measured", "bar", ""), map(_row, figures))
    for note in notes:
        say(note)


def _require_room(folder: Path, sizes: _Sizes) -> None:
    """Refuse what the disk has no room for, before anything is measured."""
    wanted = int(sizes.upload_gigabytes * 1e9) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if wanted > free:
        raise SlidepackError(
            "DISK-FULL",
            "There is no room for the upload.",
            why=f"{wanted / 1e9:.1f} GB to write to {folder.parent}, {free / 1e9:.1f} GB free",
            fix="Give a smaller --upload-gigabytes, or another directory with TMPDIR.",
        )


def _refused(error: httpx.HTTPError, folder: Path) -> SlidepackError:
    """Return what is to be said of a daemon that does not answer as it should."""
    log = (folder / "daemon.log").read_text("utf-8", "replace").strip().splitlines()
    return SlidepackError(
        "RUN-CRASHED",
        "The daemon refused a request of the benchmark.",
        why=f"{error}; its log ends with: {log[-1] if log else 'nothing'}",
        fix="Run it again; where it fails again, smaller numbers may tell why.",
    )


def _measure(folder: Path, sizes: _Sizes) -> tuple[list[Figure], list[str]]:
    """Return the figures and what is to be said of them."""
    ended = sizes.jobs // 2
    # One ended job has the long series, and one of the others trains.
    home = fill(folder, ended=ended - 1, waiting=sizes.jobs - ended - 1, points=sizes.points)
    # The CPU alone: what trains has it, on any machine.
    environment = os.environ | {"SLIDEPACK_PORT": "0", "SLIDEPACK_DEVICE": "cpu"}
    notes = ["Medians and p95 are of the daemon's answers, each awaited before the next is asked."]
    with (
        training_job(home, _EVENTS_PER_SECOND),
        running_daemon(folder, environment) as (client, child),
        httpx.Client(
            base_url=client.url, timeout=None, trust_env=False, follow_redirects=True
        ) as http,
    ):
        assert child is not None
        process = psutil.Process(child.pid)
        wait_until_settled(client)
        http.get(client.post("/login-links")["url"]).raise_for_status()
        figures = [
            *_of_requests(http, process, home, sizes),
            *_of_listeners(folder, process, sizes),
        ]
        if sizes.upload_gigabytes:
            figures += _of_upload(folder, process, sizes)
            notes.append("The upload was rows, and dropped before it was checked.")
        figures += _of_browser(client, sizes, notes)
    return figures, notes


def _of_requests(
    http: httpx.Client, process: psutil.Process, home: BenchHome, sizes: _Sizes
) -> Iterator[Figure]:
    for name, path, bar in (
        ("Home", "/", 30.0),
        ("/queue", "/queue", None),
        ("GET /api/v1/jobs", "/api/v1/jobs", None),
    ):
        times = times_of(http, process, path, sizes.requests)
        yield _figure(f"{name}, median", 1e3 * times.median, "ms")
        yield _figure(f"{name}, p95", 1e3 * times.p95, "ms", bar)
        yield _figure(f"{name}, CPU", 1e3 * times.cpu, "ms")
    path = f"/api/v1/jobs/{home.long_job}/series?points=1000"
    times = times_of(http, process, path, max(2, sizes.requests // 10))
    yield _figure(f"series of {sizes.points:,} steps, median", 1e3 * times.median, "ms", 100.0)
    yield _figure(f"series of {sizes.points:,} steps, CPU", 1e3 * times.cpu, "ms")


def _of_listeners(folder: Path, process: psutil.Process, sizes: _Sizes) -> Iterator[Figure]:
    address = read_address(folder)
    heard = listen(
        address.url, address.token, process, clients=sizes.clients, seconds=sizes.seconds
    )
    who = f"{sizes.clients} listeners"
    yield _figure(f"CPU with {who}", 100 * heard.cpu_share, "% of a core", 30.0)
    yield _figure(f"RSS with {who}", heard.resident_bytes / 1e6, "MB", 200.0)
    yield _figure(f"{who}: steps told", heard.events, "")
    yield _figure(f"{who}: who missed any", heard.listeners_short, "", 0.0)


def _of_upload(folder: Path, process: psutil.Process, sizes: _Sizes) -> Iterator[Figure]:
    address = read_address(folder)
    with httpx.Client(
        base_url=address.url,
        headers={"authorization": f"Bearer {address.token}"},
        timeout=None,
        trust_env=False,
    ) as http:
        sent = upload(http, process, int(sizes.upload_gigabytes * 1e9))
    name = f"upload of {sizes.upload_gigabytes:g} GB"
    yield _figure(f"{name}: RSS above before", sent.growth_bytes / 1e6, "MB", 50.0)
    yield _figure(f"{name}: rate", sizes.upload_gigabytes / sent.seconds, "GB/s")


def _of_browser(client: DaemonClient, sizes: _Sizes, notes: list[str]) -> Iterator[Figure]:
    program = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if program is None or importlib.util.find_spec("playwright") is None:
        missing = "Chromium" if program is None else "Playwright (`pip install playwright`)"
        notes.append(f"Nothing was timed in a browser: {missing} is not installed.")
        return
    options = {
        "url": client.url,
        "link": client.post("/login-links")["url"],
        "program": program,
        "rounds": sizes.rounds,
    }
    found = run_benchmark(msgspec.json.encode(options).decode(), module=_BROWSER_MODULE)
    notes.append(f"In Chromium {found['browser']}: medians of {sizes.rounds}, the cache empty.")
    yield _figure("Home: first contentful paint", found["first_paint_ms"], "ms", 300.0)
    yield _figure("Home: transferred", found["transferred_bytes"] / 1e3, "kB", 150.0)
    if found["job_pause_ms"] is not None:
        yield _figure("pause of a job, shown", found["job_pause_ms"], "ms", 150.0)
    yield _figure("pause of the queue, shown", found["queue_pause_ms"], "ms", 150.0)


def _figure(name: str, value: float, unit: str, bar: float | None = None) -> Figure:
    return Figure(
        name=name,
        value=round(value, 3),
        unit=unit,
        bar=bar,
        passed=None if bar is None else value <= bar,
    )


def _row(figure: Figure) -> tuple[object, ...]:
    def shown(value: float) -> str:
        return f"{value:,.4g} {figure.unit}".strip()

    passed = {None: None, True: "passed", False: "missed"}[figure.passed]
    bar = None if figure.bar is None else shown(figure.bar)
    return figure.name, shown(figure.value), bar, passed
