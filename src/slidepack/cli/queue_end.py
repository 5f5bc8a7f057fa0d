"""`slidepack queue-end`: what this machine does when the queue is done."""

from typing import Annotated, Any

import typer

from slidepack.cli.client import connect
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, say

_WORDS = {
    "nothing": "stays on",
    "suspend": "sleeps",
    "poweroff": "switches off",
}


def queue_end(
    action: Annotated[
        str | None, typer.Argument(help="nothing, suspend or poweroff; shows it if left out.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stay on, also in the last five minutes.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Choose what this machine does, once, when the queue is done."""
    if action is not None and cancel:
        raise typer.BadParameter("say an action or --cancel")
    client = connect()
    if cancel:
        state = client.post("/queue/end/cancel")
    elif action is not None:
        state = client.put("/queue/end", {"action": action})
    else:
        state = client.get("/queue/end")
    if json_output:
        print_json(state)
    else:
        say(_sentence(state))


def _sentence(state: dict[str, Any]) -> str:
    what = f"When the queue is done, this machine {_WORDS[state['action']]}"
    if state["seconds_left"] is not None:
        what = f"This machine {_WORDS[state['action']]} in {state['seconds_left']:.0f} s"
    return f"{what} ({state['note']})." if state["note"] else f"{what}."
