"""A real browser, and a daemon with a model and an ended job that the tests share."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.browsing import OpenVisitor, Visitor, visit
from e2e.pages import Places
from playwright.sync_api import Browser, Page, expect, sync_playwright
from support.daemons import DaemonProcess
from support.tiny import chat_rows, write_jsonl
from support.waiting import PATIENCE

_ARGUMENTS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass(frozen=True)
class Studio:
    """A daemon with a tiny model and data; its jobs take seconds."""

    daemon: DaemonProcess
    model_id: str
    model_path: Path
    dataset: int

    def start(self, **changes: Any) -> int:
        """Queue a short job and return its id."""
        request = {
            "model": self.model_id,
            "dataset": self.dataset,
            "rank": 4,
            "lr": 0.01,
            "batch_size": 4,
            "max_seq_len": 128,
            "steps": 20,
        }
        job = self.daemon.api("POST", "/jobs", json=request | changes)
        return int(job["id"])


# A page waits for the daemon, and both for a processor: the usual five seconds are not enough.
expect.set_options(timeout=PATIENCE * 1000)


# For each file its own: Playwright keeps an event loop running in this thread, in which no test of
# another folder could run one of its own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, chromium_sandbox=False, args=list(_ARGUMENTS)
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Studio]:
    """The shared daemon."""
    folder = tmp_path_factory.mktemp("studio")
    # A page of a chat, once looked at, would keep the CPU from the jobs of later tests.
    daemon = DaemonProcess(folder / "home", chat_idle_minutes="0.2")
    try:
        daemon.start()
        # Other tests pretend to play on this machine, and nothing here would begin meanwhile.
        daemon.api("POST", "/policy", json={"detect_games": False})
        model_id = daemon.add_model(tiny_model)
        dataset = daemon.upload(write_jsonl(folder / "words.jsonl", chat_rows(40)))
        yield Studio(daemon, model_id, tiny_model, dataset)
    finally:
        daemon.clean_up()


@pytest.fixture(scope="session")
def completed_job(studio: Studio) -> int:
    """The id of a completed job."""
    job_id = studio.start(name="A small run", sample_prompts=["Name stone number 1"])
    studio.daemon.wait_for(job_id, "completed")
    return job_id


@pytest.fixture(scope="session")
def failed_job(studio: Studio, tmp_path_factory: pytest.TempPathFactory) -> int:
    """The id of a job that failed before it ran: its model was changed after it was added."""
    folder = tmp_path_factory.mktemp("changed") / "changed"
    shutil.copytree(studio.model_path, folder)
    model_id = studio.daemon.add_model(folder)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    job_id = studio.start(name="On a changed model", model=model_id)
    studio.daemon.wait_for(job_id, "failed")
    return job_id


@pytest.fixture(scope="session")
def places(studio: Studio, completed_job: int, failed_job: int) -> Places:
    """Where the pages of this daemon are."""
    request = {"model": studio.model_id, "dataset": studio.dataset, "grid": {"lr": [1e-3, 1e-2]}}
    fixed = {"batch_size": 4, "max_seq_len": 128, "rank": 4, "steps": 4}
    swept = studio.daemon.api("POST", "/sweeps", json=request | {"fixed": fixed})
    for job_id in swept["jobs"]:
        studio.daemon.wait_for(job_id, "completed")
    return Places(
        job=completed_job,
        failed=failed_job,
        dataset=studio.dataset,
        sweep=swept["sweep_id"],
    )


@pytest.fixture
def open_visitor(browser: Browser) -> Iterator[OpenVisitor]:
    """Open visitors; afterwards, what their browsers complained of fails the test."""
    visitors: list[Visitor] = []

    def open_one(daemon: DaemonProcess, **options: Any) -> Visitor:
        visitors.append(visit(browser, daemon, **options))
        return visitors[-1]

    yield open_one
    for visitor in visitors:
        visitor.page.context.close()
    assert [complaint for visitor in visitors for complaint in visitor.unexpected()] == []


@pytest.fixture
def page(open_visitor: OpenVisitor, studio: Studio) -> Page:
    """The first page of the shared daemon."""
    return open_visitor(studio.daemon).page
