"""`slidepack jobs`: the queue."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from slidepack.cli.client import connect
from slidepack.cli.exports import form_of
from slidepack.cli.jobs_continue import continue_job
from slidepack.cli.jobs_judged import print_judgement
from slidepack.cli.moments import parse_moment
from slidepack.cli.options import After, At, By, Columns, Form, Json, Name, Priority, Prompts, Start
from slidepack.cli.output import print_json, print_table, say
from slidepack.cli.removal import show_removal
from slidepack.engine.contract.job import TooLong

app = typer.Typer(help="The queue.", no_args_is_help=True)
app.command("continue")(continue_job)

_ANY: Final = "any"
"""No such time."""
Value = typer.Option


@app.command("add")
def add(
    data: Annotated[Path, typer.Argument(help="Data file.")],
    model: Annotated[str, Value(help="Id of a model (`slidepack models list`).")],
    held_out: Annotated[
        Path | None, Value(help="Data file that is measured and never trained.")
    ] = None,
    form: Form = None,
    columns: Columns = None,
    allow_rejects: Annotated[
        bool, Value("--allow-rejects", help="Bear that many rows are left out.")
    ] = False,
    text_mode: Annotated[
        str | None, Value(help="Of plain text: document, paragraph or line.")
    ] = None,
    encoding: Annotated[str | None, Value(help="Of a text file; found out if not given.")] = None,
    name: Name = None,
    method: Annotated[str | None, Value(help="lora or full (lora).")] = None,
    rank: Annotated[int | None, Value(help="LoRA rank (16).")] = None,
    alpha: Annotated[int | None, Value(help="LoRA alpha (32).")] = None,
    dropout: Annotated[float | None, Value(help="LoRA dropout (0).")] = None,
    lr: Annotated[float | None, Value(help="Peak learning rate (2e-4; full 2e-5).")] = None,
    schedule: Annotated[str | None, Value(help="cosine, linear or constant.")] = None,
    batch_size: Annotated[int | None, Value(help="Rows in one step (8).")] = None,
    max_seq_len: Annotated[int | None, Value(help="Longest row in tokens (1024).")] = None,
    too_long: Annotated[
        TooLong | None, Value(help="Longer rows: left out, cut or split (drop).")
    ] = None,
    epochs: Annotated[float | None, Value(help="Passes over the data (3).")] = None,
    steps: Annotated[int | None, Value(help="Steps; above 0 it replaces epochs.")] = None,
    prompt: Prompts = None,
    judge_rows: Annotated[
        int | None, Value(help="Held-out rows to compare with the base by; 0 for none (32).")
    ] = None,
    seed: Annotated[int | None, Value(help="Seed of everything random (0).")] = None,
    start: Start = None,
    at: At = None,
    by: By = None,
    priority: Priority = None,
    after: After = None,
    after_failure: Annotated[
        str | None, Value(help="Where that job fails: hold this one, or run it (hold).")
    ] = None,
    on_failure: Annotated[
        str | None, Value(help="Where this job fails: continue or stop the queue (continue).")
    ] = None,
    json_output: Json = False,
) -> None:
    """Check a data file and queue a job on it."""
    now = datetime.now()
    not_before = None if at is None else parse_moment(at, now)
    client = connect()
    given: dict[str, Any] = {
        "name": name,
        "method": method,
        "rank": rank,
        "alpha": alpha,
        "dropout": dropout,
        "lr": lr,
        "schedule": schedule,
        "batch_size": batch_size,
        "max_seq_len": max_seq_len,
        "too_long": too_long,
        "epochs": epochs,
        "steps": steps,
        "sample_prompts": prompt or None,
        "judge_rows": judge_rows,
        "seed": seed,
        "start": start,
        "not_before": not_before,
        "deadline": None if by is None else parse_moment(by, now),
        "priority": priority,
        "after": after or None,
        "after_failure": after_failure,
        "on_failure": on_failure,
    }
    # What was not given takes the API's own default.
    request = {key: value for key, value in given.items() if value is not None}
    reading = {"format": form, "map": columns, "text_mode": text_mode, "encoding": encoding}
    query = {key: value for key, value in reading.items() if value is not None}
    if allow_rejects:
        query["allow_rejects"] = "true"
    request |= {"model": model, "dataset": client.upload(data, query)["id"]}
    if held_out is not None:
        request["held_out"] = client.upload(held_out, query)["id"]
    job = client.post("/jobs", request)
    if json_output:
        print_json(job)
    else:
        say(f"Job {job['id']} ({job['name']}) is queued: {client.url}/jobs/{job['id']}")


@app.command("list")
def list_jobs(json_output: Json = False) -> None:
    """List the jobs: the live, the queue in its order, the ended."""
    jobs = connect().get("/jobs")
    if json_output:
        print_json(jobs)
        return
    print_table(
        ("id", "state", "step", "loss", "name", "why"),
        (
            (
                job["id"],
                job["state"],
                f"{job['step']}/{job['total_steps']}" if job["total_steps"] else "",
                "" if job["loss"] is None else f"{job['loss']:.3f}",
                job["name"],
                job["reason"],
            )
            for job in jobs
        ),
    )


@app.command("show")
def show(job_id: int, json_output: Json = False) -> None:
    """Show one job."""
    detail = connect().get(f"/jobs/{job_id}")
    if json_output:
        print_json(detail)
        return
    job = detail["job"]
    print_table(("", ""), ((key, value) for key, value in job.items() if value is not None))
    print_table(
        ("step", "split", "held-out loss"),
        ((row["step"], row["split"], row["loss"]) for row in detail["evaluations"]),
    )
    print_table(
        ("question", "step", "answer"),
        ((row["prompt"], row["step"], row["answer"]) for row in detail["samples"]),
    )
    print_judgement(detail["judgement"])


@app.command("logs")
def logs(job_id: int, json_output: Json = False) -> None:
    """Print the end of a job's log."""
    text = connect().text(f"/jobs/{job_id}/log")
    if json_output:
        print_json({"job": job_id, "log": text})
    else:
        say(text)


@app.command("cancel")
def cancel(job_id: int, json_output: Json = False) -> None:
    """End a job for good."""
    _act(job_id, "cancel", json_output)


@app.command("pause")
def pause(job_id: int, json_output: Json = False) -> None:
    """Checkpoint a job and hold it until it is resumed."""
    _act(job_id, "pause", json_output)


@app.command("resume")
def resume(job_id: int, json_output: Json = False) -> None:
    """Let a paused job go on."""
    _act(job_id, "resume", json_output)


@app.command("retry")
def retry(
    job_id: int,
    resume: Annotated[bool, Value("--resume", help="Go on from its last good checkpoint.")] = False,
    lr_factor: Annotated[
        float, Value(help="What its learning rate is multiplied by, as in 0.333.")
    ] = 1.0,
    json_output: Json = False,
) -> None:
    """Queue an ended job again."""
    _act(job_id, "retry", json_output, {"resume": resume, "lr_factor": lr_factor})


@app.command("smaller")
def smaller(job_id: int, json_output: Json = False) -> None:
    """Try an ended job again with fewer rows a step, or shorter ones, that take less memory."""
    _act(job_id, "smaller", json_output)


@app.command("duplicate")
def duplicate(job_id: int, json_output: Json = False) -> None:
    """Queue a second job with the settings of any job, be it running."""
    _act(job_id, "duplicate", json_output)


@app.command("move")
def move(
    job_id: int,
    before: Annotated[int | None, Value(help="Before this job.")] = None,
    last: Annotated[bool, Value("--last", help="To the end of the queue.")] = False,
    json_output: Json = False,
) -> None:
    """Give a job another place in the queue."""
    if (before is None) != last:
        raise typer.BadParameter("say --before JOB or --last")
    _act(job_id, "move", json_output, {"before": before})


@app.command("when")
def when(
    job_id: int,
    start: Annotated[
        str | None,
        Value(help="auto, now (windows do not bind it) or tonight; each ends an earlier --at."),
    ] = None,
    at: Annotated[str | None, Value(help="Not before: 23:00, 2026-12-24T18:30, or any.")] = None,
    by: Annotated[
        str | None, Value(help="When it should be done: 07:00, 2026-12-24T18:30, or any.")
    ] = None,
    priority: Annotated[int | None, Value(help="Higher ones run first.")] = None,
    json_output: Json = False,
) -> None:
    """Change when a job that has not ended may run; what is not given stays."""
    now = datetime.now()
    given: dict[str, Any] = {"start": start, "priority": priority}
    request = {key: value for key, value in given.items() if value is not None}
    for key, text in (("not_before", at), ("deadline", by)):
        if text is not None:
            request[key] = None if text == _ANY else parse_moment(text, now)
    if not request:
        raise typer.BadParameter("say --start, --at, --by or --priority")
    _act(job_id, "reschedule", json_output, request)


@app.command("rm")
def remove(
    job_id: int,
    dry_run: Annotated[
        bool, Value("--dry-run", help="Say what it would free, and delete nothing.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Delete an ended job: its chart, its checkpoints and its result; its exports stay."""
    if dry_run:
        show_removal(connect().get(f"/jobs/{job_id}/removal"), json_output)
        return
    removed = connect().delete(f"/jobs/{job_id}")
    if json_output:
        print_json(removed)
        return
    say(f"Job {job_id} is deleted.")
    for export in removed["exports"]:
        where = f"{form_of(export)}, {export['bytes'] / 1e6:,.1f} MB"
        say(f"Its export {export['id']} stays ({where}): `slidepack exports rm {export['id']}`.")


def _act(job_id: int, action: str, json_output: bool, body: object = None) -> None:
    job = connect().post(f"/jobs/{job_id}/{action}", body)
    if json_output:
        print_json(job)
    else:
        asked = f", asked to {job['wanted']}" if job["wanted"] else ""
        say(f"Job {job['id']} is {job['state']}{asked}.")
