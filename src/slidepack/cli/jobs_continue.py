"""`slidepack jobs continue`: more training from what an ended job left."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from slidepack.cli.client import DaemonClient, connect
from slidepack.cli.moments import parse_moment
from slidepack.cli.options import After, At, By, Columns, Form, Json, Name, Priority, Prompts, Start
from slidepack.cli.output import print_json, say
from slidepack.engine.contract.job import Schedule, TooLong

__all__ = ["continue_job"]

_TAKEN: Final = {"state": "with its optimizer state", "weights": "with its weights alone"}

Value = typer.Option


def continue_job(
    job_id: Annotated[int, typer.Argument(help="The job to continue.", metavar="JOB")],
    epochs: Annotated[
        float | None, Value(help="Passes over the data (as long as the job was).")
    ] = None,
    steps: Annotated[int | None, Value(help="Steps, in place of epochs.")] = None,
    data: Annotated[
        str | None, Value(help="Data file, or number of a dataset, to train on now (the same).")
    ] = None,
    held_out: Annotated[
        str | None, Value(help="Data file, or number of a dataset, that is only measured.")
    ] = None,
    form: Form = None,
    columns: Columns = None,
    lr: Annotated[float | None, Value(help="Peak learning rate (the job's).")] = None,
    schedule: Annotated[Schedule | None, Value(help="A new one begins; of which shape.")] = None,
    no_warmup: Annotated[
        bool, Value("--no-warmup", help="Begin at the full rate, not with a warm-up from 0.")
    ] = False,
    batch_size: Annotated[int | None, Value(help="Rows in one step.")] = None,
    max_seq_len: Annotated[int | None, Value(help="Longest row in tokens.")] = None,
    too_long: Annotated[TooLong | None, Value(help="Longer rows: left out, cut or split.")] = None,
    dropout: Annotated[float | None, Value(help="LoRA dropout.")] = None,
    seed: Annotated[
        int | None, Value(help="Of the rows' order and dropout (the job's and 1).")
    ] = None,
    weights_only: Annotated[
        bool, Value("--weights-only", help="Begin with fresh optimizer state.")
    ] = False,
    prompt: Prompts = None,
    name: Name = None,
    start: Start = None,
    at: At = None,
    by: By = None,
    priority: Priority = None,
    after: After = None,
    json_output: Json = False,
) -> None:
    """Queue a job that begins with what an ended one left: its adapter or weights.

    The optimizer's state comes along where a checkpoint has it: an adapter's for 30 days, a whole
    model's only where the job did not come to its end. Steps count from 0 and the learning rate
    follows a new schedule. Rows that were held out stay held out.
    """
    client = connect()
    reading = {"format": form, "map": columns}
    query = {key: value for key, value in reading.items() if value is not None}
    given: dict[str, Any] = {
        "epochs": epochs,
        "steps": steps,
        "dataset": _dataset(client, data, query),
        "held_out": _dataset(client, held_out, query),
        "lr": lr,
        "schedule": schedule,
        "warmup_fraction": 0.0 if no_warmup else None,
        "batch_size": batch_size,
        "max_seq_len": max_seq_len,
        "too_long": too_long,
        "dropout": dropout,
        "seed": seed,
        "weights_only": weights_only or None,
        "sample_prompts": prompt or None,
        "name": name,
        "start": start,
        "not_before": None if at is None else parse_moment(at, datetime.now()),
        "deadline": None if by is None else parse_moment(by, datetime.now()),
        "priority": priority,
        "after": after or None,
    }
    request = {key: value for key, value in given.items() if value is not None}
    job = client.post(f"/jobs/{job_id}/continue", request)
    if json_output:
        print_json(job)
        return
    origin = client.get(f"/jobs/{job['id']}")["spec"]["continues"]
    say(
        f"Job {job['id']} ({job['name']}) goes on from job {job_id} after step {origin['step']}, "
        f"{_TAKEN[origin['taken']]}: {client.url}/jobs/{job['id']}"
    )


def _dataset(client: DaemonClient, given: str | None, query: dict[str, Any]) -> int | None:
    """Return the number of a dataset that was named, or of a file once it is uploaded."""
    if given is None or (given.isdecimal() and not Path(given).exists()):
        return None if given is None else int(given)
    return int(client.upload(Path(given), query)["id"])
