"""`slidepack jobs continue`, against a real daemon with a completed job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.queueing import Farm
from support.tiny import chat_rows, write_jsonl

from slidepack.cli.main import run

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def held(served_farm: Farm, command: Command) -> Any:
    """What is queued waits, so that nothing trains beside the tests."""
    command("pause")
    yield
    for job in served_farm.daemon.api("GET", "/jobs"):
        if job["ended_at"] is None:
            served_farm.act(job["id"], "cancel")
    command("resume")


@pytest.mark.full
def test_more_of_the_same(command: Command, served_farm: Farm) -> None:
    status, job = command("jobs", "continue", "1")
    assert status == 0
    assert job["continues"] == 1
    spec = served_farm.detail(job["id"])["spec"]
    assert (spec["steps"], spec["continues"]["taken"]) == (6, "state")
    assert job["id"] in command("jobs", "show", "1")[1]["job"]["continued_by"]


def test_everything_that_may_change(command: Command, served_farm: Farm, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "more.jsonl", chat_rows(20))
    options: tuple[str, ...] = (
        "--epochs",
        "2",
        "--data",
        str(file),
        "--lr",
        "1e-4",
        "--schedule",
        "linear",
    )
    options += ("--no-warmup", "--batch-size", "2", "--max-seq-len", "96", "--too-long", "cut")
    options += ("--dropout", "0.2", "--seed", "77", "--weights-only", "--name", "Further")
    options += ("--prompt", "What?", "--start", "now", "--priority", "2")
    status, job = command("jobs", "continue", "1", *options)
    assert status == 0
    assert (job["name"], job["any_time"], job["priority"]) == ("Further", True, 2)
    spec = served_farm.detail(job["id"])["spec"]
    assert (spec["epochs"], spec["steps"], spec["batch_size"], spec["seed"]) == (2.0, 0, 2, 77)
    assert (spec["max_seq_len"], spec["too_long"]) == (96, "cut")
    assert spec["optim"]["lr"] == 1e-4
    assert (spec["optim"]["schedule"], spec["optim"]["warmup_fraction"]) == ("linear", 0.0)
    assert spec["method"]["dropout"] == 0.2
    assert spec["eval"]["sample_prompts"] == ["What?"]
    assert spec["continues"]["taken"] == "weights"
    number = spec["dataset"]["dataset_id"]
    status, job = command("jobs", "continue", "1", "--data", number, "--steps", "3")
    assert (status, str(job["dataset_id"])) == (0, number)


def test_a_job_that_has_not_ended_is_refused_by_its_state(command: Command) -> None:
    _, job = command("jobs", "continue", "1")
    status, answer = command("jobs", "continue", str(job["id"]))
    assert status != 0
    assert answer["error"]["code"] == "RUN-STATE"
    for wrong in ((), ("many",), ("1", "--schedule", "magic"), ("1", "--epochs", "x")):
        assert run(["jobs", "continue", *wrong]) == 2


def test_people_are_told_what_was_taken(
    served_farm: Farm, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["jobs", "continue", "1", "--steps", "2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "goes on from job 1 after step 6, with its optimizer state: http://127.0.0.1:" in out
