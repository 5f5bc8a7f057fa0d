"""The command line."""

import os
import signal
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Final

import typer

from slidepack.cli import (
    access,
    bench,
    data,
    exports,
    jobs,
    models,
    notify,
    policy,
    schedule,
    service,
    sweep,
)
from slidepack.cli.chat import chat
from slidepack.cli.client import connect
from slidepack.cli.demo import run_demo
from slidepack.cli.doctor import doctor as run_doctor
from slidepack.cli.export import export
from slidepack.cli.fit import fit
from slidepack.cli.options import Json
from slidepack.cli.output import never_fail_to_encode, print_json, say
from slidepack.cli.plan import plan
from slidepack.cli.queue_end import queue_end
from slidepack.cli.train import train
from slidepack.daemon.paths import disk_error
from slidepack.daemon.settings import data_home
from slidepack.engine.contract.errors import CATALOGUE, SlidepackError

_INTERRUPTED: Final = CATALOGUE["RUN-INTERRUPTED"].exit_code

app = typer.Typer(
    help="Fine-tune language models on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(jobs.app, name="jobs")
app.add_typer(models.app, name="models")
app.add_typer(data.app, name="data")
app.add_typer(exports.app, name="exports")
app.add_typer(bench.app, name="bench")
app.add_typer(policy.app, name="policy")
app.add_typer(schedule.app, name="schedule")
app.add_typer(notify.app, name="notify")
app.add_typer(service.app, name="service")
app.add_typer(sweep.app, name="sweep")
app.add_typer(access.app, name="tokens")
app.command()(access.password)
app.command()(policy.pause)
app.command()(policy.resume)
app.command("queue-end")(queue_end)
app.command()(notify.digest)
app.command()(fit)
app.command()(plan)
app.command()(train)
app.command()(export)
app.command()(chat)


@app.command()
def serve() -> None:
    """Run the daemon: page, API and queue, on 127.0.0.1 unless the settings say otherwise."""
    # The daemon is a lean program of its own; it takes this process's place. A Ctrl-C while it
    # loads waits until it can be answered.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "slidepack.web"])


@app.command("open")
def open_page(json_output: Json = False) -> None:
    """Make a one-time login link and open the page."""
    url = connect().post("/login-links")["url"]
    if json_output:
        print_json({"url": url})
        return
    say(url)
    webbrowser.open(url)


@app.command()
def demo(
    headless: Annotated[bool, typer.Option(help="No browser; end with the job.")] = False,
    json_output: Json = False,
) -> None:
    """Train a small model on a small dataset, from nothing to an adapter."""
    run_demo(headless=headless, json_output=json_output)


@app.command()
def doctor(json_output: Json = False) -> None:
    """Look at the hardware and the software, and say what stands in the way."""
    raise typer.Exit(run_doctor(json_output, data_home(os.environ)))


def main() -> None:
    """Run a command; every failure is one line with a code, and its exit status."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command and return its exit status."""
    never_fail_to_encode()
    try:
        # The script held Ctrl-C back while this module loaded.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        app(arguments)
    except SystemExit as end:
        # Typer ends every command this way: also wrong usage (2), and Ctrl-C without a word.
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        return _report(_interrupted(), arguments) if status == _INTERRUPTED else status
    except SlidepackError as error:
        return _report(error, arguments)
    except KeyboardInterrupt:
        return _report(_interrupted(), arguments)
    except OSError as error:
        # What a command reads is checked by the command; this is what it writes.
        return _report(disk_error(error, Path(error.filename or data_home(os.environ))), arguments)
    return 0


def _interrupted() -> SlidepackError:
    return SlidepackError(
        "RUN-INTERRUPTED",
        "Interrupted; nothing is lost.",
        fix="Run the same command again to go on.",
    )


def _report(error: SlidepackError, arguments: list[str]) -> int:
    if "--json" in arguments:
        print_json({"error": error.report})
    sys.stderr.write(f"{error}\n")
    return error.exit_code
