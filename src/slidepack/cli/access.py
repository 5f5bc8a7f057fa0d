"""`slidepack password` and `slidepack tokens`: who gets in from elsewhere."""

import os
import sys
from datetime import datetime
from typing import Annotated

import typer

from slidepack.cli.client import connect
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.daemon.instance import InstanceLock
from slidepack.daemon.passwords import SHORTEST, Passwords
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.settings import data_home
from slidepack.daemon.store.access import SCOPES, Scope, Sessions
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.documents import Documents
from slidepack.engine.contract.errors import SlidepackError

app = typer.Typer(help="Tokens with which scripts use the API.", no_args_is_help=True)


def password(json_output: Json = False) -> None:
    """Set the page's password, for logins from other machines; it is asked for, or read from
    standard input. All browsers have to log in again. The daemon need not run."""
    wanted = _ask()
    try:
        connect().put("/password", {"new": wanted})
    except SlidepackError as error:
        if error.report.code != "DAEMON-NOT-RUNNING":
            raise
        _set_without_daemon(wanted)
    if json_output:
        print_json({"password": "set"})
        return
    say("The password is set. All browsers have to log in again.")
    say('Other machines reach the page with the setting listen = "lan", after a restart.')


@app.command("list")
def list_tokens(json_output: Json = False) -> None:
    """List the tokens; what they are is not kept anywhere."""
    tokens = connect().get("/tokens")
    if json_output:
        print_json(tokens)
        return
    print_table(
        ("id", "name", "may", "made", "last used", "ends"),
        (
            (
                token["id"],
                token["name"],
                ", ".join(token["scopes"]),
                _day(token["created_at"]),
                _day(token["used_at"]) or "never",
                _day(token["expires_at"]) or "never",
            )
            for token in tokens
        ),
    )
    if not tokens:
        say("No token yet. Make one: slidepack tokens add prometheus --scope read")


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="What to call it, as the script that uses it.")],
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            help="What it may do, repeatable: read (jobs, results, metrics; the default), jobs "
            "(also add, steer and delete), chat (/v1), admin (everything).",
        ),
    ] = None,
    days: Annotated[float | None, typer.Option(help="Days until it ends; else never.")] = None,
    json_output: Json = False,
) -> None:
    """Make a token and print it, this once."""
    wanted = [_scope(scope) for scope in scopes or ["read"]]
    made = connect().post("/tokens", {"name": name, "scopes": wanted, "days": days})
    if json_output:
        print_json(made)
        return
    say(made["token"])
    # The token alone on standard output, so that a script can take it.
    sys.stderr.write("Keep it: it is not shown again. Send it as `Authorization: Bearer ...`.\n")


@app.command("rm")
def remove(token_id: int, json_output: Json = False) -> None:
    """End a token at once."""
    connect().delete(f"/tokens/{token_id}")
    if json_output:
        print_json({"removed": token_id})
    else:
        say(f"{token_id} is removed.")


def _ask() -> str:
    """Return a password from a prompt that does not show it, or from standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    text = f"New password, {SHORTEST} letters or more (not shown)"
    return str(
        typer.prompt(text, hide_input=True, err=True, confirmation_prompt="Once more (not shown)")
    )


def _set_without_daemon(wanted: str) -> None:
    paths = DataPaths(data_home(os.environ))
    paths.create()
    with InstanceLock(paths):
        database = Database(paths.database)
        Passwords(Documents(database)).set(wanted, datetime.now().timestamp())
        Sessions(database).end_all()


def _scope(text: str) -> Scope:
    for scope in SCOPES:
        if text == scope:
            return scope
    raise SlidepackError(
        "DAEMON-REQUEST-INVALID",
        f"There is no scope {text}.",
        why=f"known: {', '.join(SCOPES)}",
        fix="Name one of these; --scope can be given several times.",
    )


def _day(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at).strftime("%d %b %Y %H:%M")
