"""`slidepack policy`, `slidepack pause` and `slidepack resume`: who gets the GPU, and when."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final, get_origin

import msgspec
import typer

from slidepack.cli.client import connect
from slidepack.cli.moments import parse_duration, parse_moment
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.daemon.policy.rules import Policy
from slidepack.engine.contract.errors import SlidepackError

app = typer.Typer(help="When training gives the GPU back.", no_args_is_help=True)


_WORDS: Final = {"yes": "true", "on": "true", "no": "false", "off": "false"}


@app.command("show")
def show(json_output: Json = False) -> None:
    """Show the policy, and what it says now."""
    client = connect()
    policy = client.get("/policy")
    state = client.get("/policy/state")
    if json_output:
        print_json({"policy": policy, "state": state})
        return
    print_table(("setting", "value"), ((key, _shown(value)) for key, value in policy.items()))
    print_state(state)


@app.command("set")
def change(
    settings: Annotated[
        list[str],
        typer.Argument(help="KEY=VALUE, as in max_gpu_celsius=80 or exclusive_apps=cs2,elden*."),
    ],
    json_output: Json = False,
) -> None:
    """Change settings of the policy; lists are separated by commas."""
    policy = connect().post("/policy", parse_settings(settings))
    if json_output:
        print_json(policy)
        return
    names = [text.partition("=")[0].strip() for text in settings]
    print_table(("setting", "value"), ((name, _shown(policy[name])) for name in names))


def pause(
    duration: Annotated[
        str | None, typer.Option("--for", help="How long: 30m, 2h, 1d; left out, until resumed.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Until when: 23:00 or 2026-12-24T18:30.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Checkpoint what trains, give the GPU back, and hold the queue."""
    if duration is not None and until is not None:
        raise typer.BadParameter("give --for or --until, not both")
    body: dict[str, float] | None = None
    if duration is not None:
        body = {"seconds": parse_duration(duration)}
    elif until is not None:
        body = {"until": parse_moment(until, datetime.now())}
    state = connect().post("/queue/pause", body)
    if json_output:
        print_json(state)
    else:
        print_state(state)


def resume(json_output: Json = False) -> None:
    """End the pause; what else holds training back, as a game that runs, still does."""
    state = connect().post("/queue/resume")
    if json_output:
        print_json(state)
    else:
        print_state(state)


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Return the fields of the policy that `KEY=VALUE` texts name, as JSON has them.

    Raises:
        SlidepackError: DAEMON-REQUEST-INVALID where one names no setting or has no such value.
    """
    types = {field.name: field.type for field in msgspec.structs.fields(Policy)}
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or key not in types or key == "windows":
            raise _refused(text, "it names no setting")
        try:
            settings[key] = _parsed(value, types[key])
        except msgspec.ValidationError as error:
            raise _refused(text, str(error)) from error
    return settings


def print_state(state: dict[str, Any]) -> None:
    """Print what the policy says now."""
    summary = state["summary"]
    say(f"{summary[:1].upper()}{summary[1:]}.")
    for notice in state["notices"]:
        say(f"Note: {notice}.")


def _parsed(value: str, kind: Any) -> Any:
    if get_origin(kind) is tuple:
        return [part.strip() for part in value.split(",") if part.strip()]
    if kind is bool:
        value = _WORDS.get(value.lower(), value.lower())
    return msgspec.convert(value, kind, strict=False)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        windows = [isinstance(entry, dict) for entry in value]
        return "see `slidepack schedule show`" if any(windows) else ", ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value) or "the system's"


def _refused(text: str, why: str) -> SlidepackError:
    names = [name for name in Policy.__struct_fields__ if name != "windows"]
    return SlidepackError(
        "DAEMON-REQUEST-INVALID",
        "The policy cannot be changed so.",
        why=f"{text!r}: {why}",
        fix=f"Write KEY=VALUE; the keys are {', '.join(names)}. Hours: `slidepack schedule`.",
    )
