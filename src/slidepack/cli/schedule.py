"""`slidepack schedule`: the hours in which training may run."""

from typing import Annotated, Any

import msgspec
import typer

from slidepack.cli.client import DaemonClient, connect
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.cli.policy import print_state
from slidepack.daemon.policy.rules import Window, format_days, parse_window
from slidepack.engine.contract.errors import SlidepackError

app = typer.Typer(help="The hours in which training may run.", no_args_is_help=True)


@app.command("show")
def show(json_output: Json = False) -> None:
    """Show the hours, and when they open or close next."""
    _report(connect(), json_output)


@app.command("add")
def add(
    days: Annotated[str, typer.Argument(help="mon-fri, sat,sun or daily.")],
    hours: Annotated[str, typer.Argument(help="23:00-07:00; the end may be the next morning.")],
    json_output: Json = False,
) -> None:
    """Add hours; as soon as there are any, training runs in no others."""
    try:
        window = parse_window(days, hours)
    except ValueError as error:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "These hours cannot be used.",
            why=str(error),
            fix="Write them as in `slidepack schedule add mon-fri 23:00-07:00`.",
        ) from error
    client = connect()
    windows = msgspec.convert(client.get("/policy")["windows"], list[Window])
    kept = windows if window in windows else [*windows, window]
    client.post("/policy", {"windows": kept, "closed": False})
    _report(client, json_output)


@app.command("clear")
def clear(json_output: Json = False) -> None:
    """Remove all hours: training may run at any time."""
    client = connect()
    client.post("/policy", {"windows": [], "closed": False})
    _report(client, json_output)


@app.command("never")
def never(json_output: Json = False) -> None:
    """Close all hours until some are added, or `clear`; jobs that may run at any time still do."""
    client = connect()
    client.post("/policy", {"closed": True})
    _report(client, json_output)


def _report(client: DaemonClient, json_output: bool) -> None:
    policy = client.get("/policy")
    state = client.get("/policy/state")
    if json_output:
        shown = {key: policy[key] for key in ("windows", "closed", "time_zone")}
        print_json(shown | {"state": state})
        return
    print_table(("days", "hours"), (_row(window) for window in policy["windows"]))
    if policy["closed"] and policy["windows"]:
        say("These hours do not count now: all are closed.")
    if policy["time_zone"]:
        say(f"Times are those of {policy['time_zone']}.")
    print_state(state)


def _row(window: dict[str, Any]) -> tuple[str, str]:
    read = msgspec.convert(window, Window)
    return format_days(read.days), f"{read.start}-{read.end}"
