"""`slidepack sweep`: many adapters over one base and one data file, compared."""

import secrets
import shutil
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from slidepack.cli.client import DaemonClient, connect
from slidepack.cli.moments import parse_moment
from slidepack.cli.options import At, Columns, Form, Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.cli.sweep_file import check_members, read_plan
from slidepack.cli.sweep_optuna import SweepStudy, make_study, optimise
from slidepack.daemon.sweeps.members import axes_of, shown_value
from slidepack.daemon.sweeps.request import MAX_MEMBERS
from slidepack.daemon.sweeps.results import Ranking
from slidepack.engine.contract.errors import SlidepackError

app = typer.Typer(help="Many adapters, compared.", no_args_is_help=True)

Data = Annotated[Path, typer.Argument(help="Data file.")]
Model = Annotated[str, typer.Option(help="Id of a model (`slidepack models list`).")]
HeldOut = Annotated[
    Path | None, typer.Option(help="Data file that members are chosen by, and never trained.")
]
AllowRejects = Annotated[
    bool, typer.Option("--allow-rejects", help="Bear that many rows are left out.")
]
Name = Annotated[str | None, typer.Option(help="Begins the members' names.")]
Priority = Annotated[int, typer.Option(help="Higher ones run first.")]

_ENDED: Final = ("completed", "failed", "cancelled")


@app.command("add")
def add(
    data: Data,
    model: Model,
    grid: Annotated[
        Path, typer.Option(help="Sweep file, TOML: [fixed], [grid], [random], [halving].")
    ],
    held_out: HeldOut = None,
    form: Form = None,
    columns: Columns = None,
    allow_rejects: AllowRejects = False,
    name: Name = None,
    start: Annotated[
        str, typer.Option(help="auto, now (windows do not bind it) or tonight.")
    ] = "auto",
    at: At = None,
    by: Annotated[
        str | None, typer.Option(help="When all should be done: 07:00 or 2026-12-24T18:30.")
    ] = None,
    priority: Priority = 0,
    json_output: Json = False,
) -> None:
    """Check a data file and queue every member of a sweep on it."""
    plan = read_plan(grid)
    check_members(plan)
    now = datetime.now()
    not_before = None if at is None else parse_moment(at, now)
    client = connect()
    reading = _reading(form, columns, allow_rejects)
    target = _target(client, data, model, held_out, reading)
    timing = {
        "start": start,
        "not_before": not_before,
        "deadline": None if by is None else parse_moment(by, now),
        "priority": priority,
    }
    given = msgspec.to_builtins(plan) | target | timing
    queued = client.post("/sweeps", given if name is None else given | {"name": name})
    if json_output:
        print_json(queued)
        return
    members = len(set(queued["jobs"]))
    same = f" {queued['merged']} were the same as another one." if queued["merged"] else ""
    say(f"Sweep {queued['sweep_id']} ({queued['name']}) is queued with {members} members.{same}")


@app.command("list")
def list_sweeps(json_output: Json = False) -> None:
    """List the sweeps, newest first."""
    sweeps = connect().get("/sweeps")
    if json_output:
        print_json(sweeps)
        return
    print_table(
        ("id", "members", "states", "best", "loss", "name"),
        (
            (
                sweep["id"],
                sweep["members"],
                ", ".join(f"{count} {state}" for state, count in sweep["states"].items()),
                sweep["best"] and f"job {sweep['best']['job_id']}",
                sweep["best"] and _loss(sweep["best"]["loss"]),
                sweep["name"],
            )
            for sweep in sweeps
        ),
    )


@app.command("show")
def show(
    sweep_id: int,
    by: Annotated[
        Ranking,
        typer.Option(
            help="selection chooses; test (loss) and test-score (share right) are for reporting."
        ),
    ] = "selection",
    json_output: Json = False,
) -> None:
    """Show a sweep's members, the lowest held-out loss first."""
    table = connect().get(f"/sweeps/{sweep_id}?by={by}")
    if json_output:
        print_json(table)
    else:
        _print_sweep(table)


@app.command("best")
def best(
    sweep_id: int,
    to: Annotated[Path | None, typer.Option(help="A new folder to copy the adapter to.")] = None,
    json_output: Json = False,
) -> None:
    """Name the best member and its adapter's folder, or copy it."""
    if to is not None and to.exists():
        raise typer.BadParameter(f"{to} is there already; name a new folder")
    found = connect().get(f"/sweeps/{sweep_id}/best")
    adapter = Path(found["adapter"])
    if to is not None:
        _copy_folder(adapter, to)
    if json_output:
        print_json(found | {"copy": None if to is None else str(to)})
        return
    say(_best_line(found))
    say(f"Its adapter is in {adapter if to is None else to}.")


@app.command("cancel")
def cancel(sweep_id: int, json_output: Json = False) -> None:
    """End all members that have not ended."""
    table = connect().post(f"/sweeps/{sweep_id}/cancel")
    if json_output:
        print_json(table)
        return
    ending = sum(member["state"] not in _ENDED for member in table["members"])
    say(f"Sweep {sweep_id} is cancelled; {ending} members are still ending.")


@app.command("rm")
def remove(sweep_id: int, json_output: Json = False) -> None:
    """Delete a sweep whose members have ended: charts, checkpoints and results."""
    connect().delete(f"/sweeps/{sweep_id}")
    if json_output:
        print_json({"removed": sweep_id})
    else:
        say(f"Sweep {sweep_id} is deleted.")


@app.command("optuna")
def run_optuna(
    data: Data,
    model: Model,
    space: Annotated[
        Path, typer.Option(help="Sweep file, TOML; the study draws what is in [random] and [grid].")
    ],
    trials: Annotated[int, typer.Option(min=1, max=MAX_MEMBERS, help="Members in all.")] = 30,
    at_once: Annotated[int, typer.Option(min=1, help="Members that are queued at a time.")] = 8,
    held_out: HeldOut = None,
    form: Form = None,
    columns: Columns = None,
    allow_rejects: AllowRejects = False,
    name: Name = None,
    priority: Priority = 0,
    json_output: Json = False,
) -> None:
    """Let an Optuna study choose the members of a sweep; it learns from those that have ended."""
    plan = read_plan(space)
    axes_of(plan)
    study = make_study(plan)
    client = connect()
    target = _target(client, data, model, held_out, _reading(form, columns, allow_rejects))
    target["priority"] = priority
    sweep = SweepStudy(study, plan, client, target if name is None else target | {"name": name})

    def told(ended: int, of: int) -> None:
        if not json_output:
            say(f"{ended} of {of} trials have ended.")

    optimise(sweep, trials, at_once, told)
    table = client.get(f"/sweeps/{sweep.sweep_id}")
    if json_output:
        print_json(table)
    else:
        _print_sweep(table)


def _reading(form: str | None, columns: list[str] | None, allow_rejects: bool) -> dict[str, Any]:
    """Return how the data files are read, as the API has it."""
    given = {"format": form, "map": columns, "allow_rejects": "true" if allow_rejects else None}
    return {key: value for key, value in given.items() if value is not None}


def _target(
    client: DaemonClient, data: Path, model: str, held_out: Path | None, reading: dict[str, Any]
) -> dict[str, Any]:
    """Send the data files, and return what members train on."""
    target = {"model": model, "dataset": client.upload(data, reading)["id"]}
    if held_out is not None:
        target["held_out"] = client.upload(held_out, reading)["id"]
    return target


def _print_sweep(table: dict[str, Any]) -> None:
    differ = table["differ"]
    tested = () if table["by"] == "selection" else ("test loss", "test score")
    print_table(
        ("", "job", "state", "steps", "loss", *tested, *differ, "rung", "seconds"),
        (
            (
                "*" if member["best"] else "",
                member["job_id"],
                member["state"],
                f"{member['step']}/{member['total_steps']}" if member["total_steps"] else "",
                _loss(member["loss"]),
                *(_tested(member) if tested else ()),
                *(shown_value(member["settings"][name]) for name in differ),
                f"stopped at {member['stopped_rung']}" if member["stopped_rung"] else "",
                f"{member['seconds']:.0f}",
            )
            for member in table["members"]
        ),
    )
    if table["best"] is not None:
        say(_best_line(table["best"]))
    if table["note"]:
        say(table["note"])


def _tested(member: dict[str, Any]) -> tuple[str, str]:
    """Return what a member measured on rows that choose nothing."""
    score = member["test_score"]
    if score is None:
        return _loss(member["test_loss"]), ""
    shown = f"{score['value']:.0%} ({score['low']:.0%} to {score['high']:.0%})"
    return _loss(member["test_loss"]), f"{shown} {score['kind'].replace('_', ' ')}"


def _best_line(best: dict[str, Any]) -> str:
    test = (
        "" if best["test_loss"] is None else f"; on rows that chose nothing {best['test_loss']:.4f}"
    )
    line = f"Best is job {best['job_id']} ({best['name']}): held-out loss {best['loss']:.4f}{test}."
    if best["lowest_loss"] < best["loss"]:
        line += f" Before its end it was down to {best['lowest_loss']:.4f}: fewer steps do better."
    return line


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _copy_folder(source: Path, target: Path) -> None:
    """Copy a folder, whole or not at all.

    Raises:
        SlidepackError: RUN-NO-RESULT: it was moved or deleted by hand.
        OSError: the disk refused.
    """
    if not source.is_dir():
        raise SlidepackError(
            "RUN-NO-RESULT",
            "The adapter's folder is not there any more.",
            why=str(source),
            fix="Put it back, or train again.",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        shutil.copytree(source, temporary)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
