"""`slidepack service`: the daemon as a systemd service."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.daemon.paths import expand_user
from slidepack.daemon.system.service_unit import Installed, ServiceStatus, ServiceUnit
from slidepack.daemon.system.systemctl import Manager

app = typer.Typer(help="The daemon as a systemd service.", no_args_is_help=True)

System = Annotated[
    bool, typer.Option("--system", help="A service of the machine instead of one of yours.")
]


@app.command("install")
def install(
    system: System = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where its files go (as now, or the usual place).")
    ] = None,
    linger: Annotated[
        bool, typer.Option("--linger", help="Let it run while you are logged out.")
    ] = False,
    only_print: Annotated[
        bool, typer.Option("--print", help="Show the unit and change nothing.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Write the unit, start it, and have it start by itself from now on."""
    unit = _unit(system)
    home = None if data_dir is None else expand_user(str(data_dir)).absolute()
    if only_print:
        text = unit.text(home)
        if json_output:
            print_json({"unit": str(unit.path), "text": text})
        else:
            say(text.rstrip("\n"))
        return
    done = unit.install(home, linger=linger)
    if json_output:
        print_json(done)
    else:
        _tell_installed(done, system)


@app.command("uninstall")
def uninstall(system: System = False, json_output: Json = False) -> None:
    """Stop the service and remove its unit; jobs checkpoint first, and all data stay."""
    unit = _unit(system)
    removed = unit.uninstall()
    if json_output:
        print_json({"unit": str(unit.path), "removed": removed})
    elif removed:
        say(f"{unit.path} is removed. Your jobs, models and results are where they were.")
    else:
        say(f"Nothing to remove: there is no {unit.path}.")


@app.command("status")
def status(system: System = False, json_output: Json = False) -> None:
    """Show how the service is."""
    found = _unit(system).status()
    if json_output:
        print_json(found)
        return
    if not found.installed:
        say("No service is installed: `slidepack service install` makes one.")
        return
    print_table(("", ""), ((name, value) for name, value in _rows(found) if value))


def _unit(system: bool) -> ServiceUnit:
    return ServiceUnit(Manager(system=system))


def _tell_installed(done: Installed, system: bool) -> None:
    say(f"The service runs, and starts by itself from now on: {done.unit}")
    if system:
        # The address and the token of the machine's daemon are for its own user to read.
        home = "SLIDEPACK_HOME=/var/lib/slidepack"
        say(f"The login link: sudo -u slidepack {home} {done.command[0]} open")
    else:
        say("The login link: slidepack open")
    say(f"Its log: {done.log}")
    for hint in done.hints:
        say(hint)


def _rows(found: ServiceStatus) -> list[tuple[str, str]]:
    since = None if found.since is None else datetime.fromtimestamp(found.since).astimezone()
    ended = "" if found.result in ("", "success") else found.result
    return [
        ("state", found.active),
        ("says", found.status),
        ("since", "" if since is None else since.isoformat(sep=" ", timespec="seconds")),
        ("main process", "" if found.main_pid is None else str(found.main_pid)),
        ("ended last by", ended),
        ("restarts", str(found.restarts) if found.restarts else ""),
        ("starts by itself", found.enabled),
        ("without a login", {None: "", True: "yes", False: "no"}[found.linger]),
        ("watchdog", found.watchdog or "none"),
        ("exposure", found.exposure or ""),
        ("unit", found.unit if found.ours else f"{found.unit} (not written by Slidepack)"),
        ("log", found.log),
    ]
