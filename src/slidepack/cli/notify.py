"""`slidepack notify` and `slidepack digest`: what the daemon tells while nobody looks."""

import sys
from datetime import datetime
from typing import Annotated, Any

import typer

from slidepack.cli.client import connect
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.daemon.notices.settings import NoticeSettings
from slidepack.engine.contract.errors import SlidepackError

app = typer.Typer(help="Notifications: ntfy, Discord, mail and others.", no_args_is_help=True)


_LISTED = 20


@app.command("list")
def list_notifiers(json_output: Json = False) -> None:
    """List the addresses, and the last notices with what became of them."""
    client = connect()
    notifiers = client.get("/notifiers")
    notices = client.get(f"/notices?limit={_LISTED}")
    if json_output:
        print_json({"notifiers": notifiers, "notices": notices})
        return
    print_table(
        ("id", "name", "service", "address"),
        ((n["id"], n["name"], n["service"], n["shown"]) for n in notifiers),
    )
    if not notifiers:
        say("No address yet. Add one: slidepack notify add -")
    print_table(("when", "notice", "sent"), (_notice_row(notice) for notice in notices))


@app.command("add")
def add(
    url: Annotated[
        str,
        typer.Argument(
            help="Apprise URL, as in ntfy://your-topic. Others on this machine can see the "
            "arguments of a command, so prefer -: it asks, or reads standard input."
        ),
    ] = "-",
    name: Annotated[str, typer.Option(help="What to call it.")] = "",
    json_output: Json = False,
) -> None:
    """Check an address and add it; it holds a secret, so type it at the prompt (the default)."""
    client = connect()
    secret = _ask() if url == "-" else url
    added = client.post("/notifiers", {"url": secret, "name": name})
    if json_output:
        print_json(added)
        return
    say(f"Added {added['id']}: {added['name']} ({added['shown']}).")
    say(f"Try it with: slidepack notify test {added['id']}")
    if url != "-":
        say("It was visible in this command's arguments, and may be in your shell's history.")


@app.command("remove")
def remove(notifier_id: int, json_output: Json = False) -> None:
    """Forget an address; what was still to be sent to it is dropped."""
    connect().delete(f"/notifiers/{notifier_id}")
    if json_output:
        print_json({"removed": notifier_id})
    else:
        say(f"{notifier_id} is removed.")


@app.command("test")
def test(notifier_id: int, json_output: Json = False) -> None:
    """Send a test at once; the exit status is 1 where it did not arrive."""
    trial = connect().post(f"/notifiers/{notifier_id}/test")
    if json_output:
        print_json(trial)
    else:
        say("It arrived." if trial["ok"] else f"It did not arrive: {trial['error']}")
    if not trial["ok"]:
        raise typer.Exit(1)


@app.command("settings")
def settings(
    sends: Annotated[
        list[str] | None,
        typer.Option(
            "--send",
            help="A kind that is sent: finished, failed, paused, needs_you, digest or none; "
            "repeatable, and what is not named is only listed.",
        ),
    ] = None,
    quiet: Annotated[
        str | None, typer.Option(help="Hours in which nothing is sent, as 23:00-07:00, or none.")
    ] = None,
    digest_at: Annotated[
        str | None,
        typer.Option(help="When the digest comes: 08:00, window (at its end) or none."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Show what is sent and when, or change it."""
    client = connect()
    now = client.get("/notices/settings")
    changes: dict[str, Any] = {}
    if sends is not None:
        changes["sends"] = [] if sends == ["none"] else sends
    if quiet is not None:
        changes["quiet_from"], changes["quiet_to"] = _hours(quiet)
    if digest_at is not None:
        changes["digest_at"] = "" if digest_at == "none" else digest_at
    if changes:
        now = client.put("/notices/settings", now | changes)
    if json_output:
        print_json(now)
        return
    quiet_hours = f"{now['quiet_from']} to {now['quiet_to']}" if now["quiet_from"] else "none"
    say(f"Sent: {', '.join(now['sends']) or 'nothing'}")
    say(f"Quiet hours: {quiet_hours}")
    say(f"Digest: {now['digest_at'] or 'none'}")


def digest(json_output: Json = False) -> None:
    """Tell what happened in the last night and what runs tonight."""
    told = connect().get("/digest")
    if json_output:
        print_json(told)
        return
    say(told["title"])
    for line in told["lines"]:
        say(line)


def _ask() -> str:
    """Return an address from a prompt that does not show it, or from standard input."""
    if sys.stdin.isatty():
        return str(typer.prompt("Address (not shown)", hide_input=True, err=True))
    return sys.stdin.readline().strip()


def _hours(text: str) -> tuple[str, str]:
    if text == "none":
        return "", ""
    begin, dash, end = text.partition("-")
    try:
        if not dash:
            raise ValueError(f"{text!r} is no span of time")
        NoticeSettings(quiet_from=begin.strip(), quiet_to=end.strip())
    except ValueError as error:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "The quiet hours cannot be used.",
            why=str(error),
            fix="Write them as 23:00-07:00, or none.",
        ) from error
    return begin.strip(), end.strip()


def _notice_row(notice: dict[str, Any]) -> tuple[object, ...]:
    when = datetime.fromtimestamp(notice["at"]).strftime("%d %b %H:%M")
    fates = [
        f"{d['notifier'] or 'removed'}: {d['state']}{': ' if d['error'] else ''}{d['error']}"
        for d in notice["deliveries"]
    ]
    return when, notice["title"], "; ".join(fates) or "no address"
