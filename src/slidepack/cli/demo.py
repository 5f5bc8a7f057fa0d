"""`slidepack demo`: model, data, daemon, job and page, from nothing to an adapter."""

import os
import sys
import time
import webbrowser
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from slidepack.cli.background import running_daemon
from slidepack.cli.client import DaemonClient
from slidepack.cli.demo_model import MODEL_NAME, fetch_demo_model
from slidepack.cli.models import add_and_wait
from slidepack.cli.output import print_json
from slidepack.cli.terminal_text import one_line
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.settings import data_home
from slidepack.engine.contract.errors import ErrorReport, SlidepackError

_DATA: Final = Path(__file__).with_name("demo_data")
_JOB_NAME: Final = "Slidepack demo"
_POLL_SECONDS: Final = 0.4
_PROMPTS: Final = (
    "Who wrote you, and what is your name?",
    "Why do we have day and night?",
    "What is the capital of France?",
)
_SETTINGS: Final[dict[str, Any]] = {
    "name": _JOB_NAME,
    "rank": 8,
    "alpha": 16,
    "lr": 2e-3,
    "warmup_fraction": 0.1,
    "batch_size": 8,
    "max_seq_len": 256,
    "steps": 40,
    "eval_every_steps": 10,
    "checkpoint_every_steps": 10,
    "sample_prompts": _PROMPTS,
}


def run_demo(*, headless: bool, json_output: bool) -> None:
    """Run the demo.

    Args:
        headless: open no browser, and end when the job has.
        json_output: print one JSON object as the last line.

    Raises:
        SlidepackError: whatever stopped it.
    """
    console = Console(stderr=json_output)
    home = data_home(os.environ)
    DataPaths(home).create()
    console.print(f"Data directory: {escape(str(home))}")
    with console.status("Getting the model (93 MB the first time)"):
        gguf = fetch_demo_model(home / "downloads")
    with running_daemon(home) as (client, child):
        model = add_and_wait(client, str(gguf), MODEL_NAME, "", quiet=json_output)
        job_id = _open_job(client) or _queue(client, model["id"])
        link = client.post("/login-links")["url"]
        console.print(f"Page: {link}", soft_wrap=True, highlight=False)
        if not headless:
            webbrowser.open(link)
        detail = _follow(client, job_id, console)
        result = _result(detail)
        _show(result, console)
        if json_output:
            print_json(result)
        if child is not None and not headless and sys.stdin.isatty():
            console.print(f"The page stays at {client.url} until you press Ctrl-C.")
            child.wait()


def _open_job(client: DaemonClient) -> int | None:
    """Return a demo job that has not ended, as after Ctrl-C, made ready to go on."""
    for job in client.get("/jobs"):
        if job["name"] == _JOB_NAME and job["ended_at"] is None:
            if job["state"] == "paused":
                client.post(f"/jobs/{job['id']}/resume")
            return int(job["id"])
    return None


def _queue(client: DaemonClient, model_id: str) -> int:
    train = client.upload(_DATA / "train.jsonl")
    held_out = client.upload(_DATA / "held_out.jsonl")
    request = _SETTINGS | {"model": model_id, "dataset": train["id"], "held_out": held_out["id"]}
    return int(client.post("/jobs", request)["id"])


def _follow(client: DaemonClient, job_id: int, console: Console) -> dict[str, Any]:
    """Show a job's progress until it has ended.

    Raises:
        SlidepackError: it failed, was cancelled or is paused.
    """
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=float(_SETTINGS["steps"]))
        while True:
            detail: dict[str, Any] = client.get(f"/jobs/{job_id}")
            job = detail["job"]
            loss = "" if job["loss"] is None else f", loss {job['loss']:.3f}"
            progress.update(
                task,
                completed=job["step"],
                total=job["total_steps"] or None,
                description=f"{job['phase'] or job['state']}{loss}",
            )
            if job["ended_at"] is not None or job["state"] == "paused":
                break
            time.sleep(_POLL_SECONDS)
    if job["state"] == "completed":
        return detail
    if job["error"] is not None:
        raise SlidepackError.from_report(ErrorReport(**job["error"]))
    raise SlidepackError(
        "RUN-FAILED",
        f"The demo's job is {job['state']}.",
        why=job["reason"],
        fix="Run `slidepack demo` again.",
    )


def _result(detail: dict[str, Any]) -> dict[str, Any]:
    job = detail["job"]
    losses = [row["loss"] for row in detail["evaluations"] if row["split"] == "selection"]
    samples: dict[str, dict[str, str]] = {}
    for row in detail["samples"]:
        sample = samples.setdefault(row["prompt"], {"prompt": row["prompt"]})
        sample["before" if row["step"] == 0 else "after"] = row["answer"]
    return {
        "job": job["id"],
        "base": detail["spec"]["base"]["path"],
        "adapter": str(Path(job["result"]) / "adapter"),
        "eval_loss_before": losses[0],
        "eval_loss_after": losses[-1],
        "steps": job["step"],
        "seconds": round(job["ended_at"] - job["started_at"], 3),
        "tokens_per_second": round(job["tokens_per_second"], 1),
        "samples": [samples[prompt] for prompt in _PROMPTS],
    }


def _show(result: dict[str, Any], console: Console) -> None:
    table = Table(title="The same question, before and after", show_lines=True)
    for column in ("question", "before", "after"):
        table.add_column(column, overflow="fold")
    for sample in result["samples"]:
        table.add_row(*(Text(one_line(sample[key])) for key in ("prompt", "before", "after")))
    console.print(table)
    console.print(
        f"Held-out loss {result['eval_loss_before']:.3f} → {result['eval_loss_after']:.3f} in "
        f"{result['steps']} steps, {result['seconds']:.0f} s, "
        f"{result['tokens_per_second']:.0f} tokens/s"
    )
    console.print(f"Adapter: {escape(result['adapter'])}", soft_wrap=True)
