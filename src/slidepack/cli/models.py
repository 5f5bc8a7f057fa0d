"""`slidepack models`: base models on this machine."""

import os
import time
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.progress import Progress

from slidepack.cli.client import DaemonClient, connect
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.cli.removal import show_removal
from slidepack.daemon.paths import expand_user
from slidepack.engine.contract.errors import ErrorReport, SlidepackError

app = typer.Typer(help="Base models on this machine.", no_args_is_help=True)


_POLL_SECONDS = 0.3


def model_path(model_id: str) -> str:
    """Return where the API has a model, whatever signs somebody typed for its id."""
    return f"/models/{quote(model_id, safe='', errors='replace')}"


@app.command("add")
def add(
    source: Annotated[str, typer.Argument(help="Folder, GGUF file, hub id or ollama:NAME.")],
    name: Annotated[str, typer.Option(help="Display name.")] = "",
    revision: Annotated[str, typer.Option(help="Branch, tag or commit on the hub.")] = "",
    json_output: Json = False,
) -> None:
    """Bring a model in: a Hugging Face folder, a GGUF file, a hub id, or a model of Ollama's."""
    client = connect()
    model = add_and_wait(client, source, name, revision, quiet=json_output)
    if json_output:
        print_json(model)
    else:
        say(f"{model['id']} is ready: {model['params']:,} parameters in {model['path']}")


@app.command("list")
def list_models(json_output: Json = False) -> None:
    """List the models."""
    models = connect().get("/models")
    if json_output:
        print_json(models)
        return
    print_table(
        ("id", "state", "parameters", "kind", "licence", "source"),
        (
            (m["id"], m["state"], f"{m['params']:,}", m["kind"], m["license"], m["source"])
            for m in models
        ),
    )


@app.command("show")
def show(model_id: str, json_output: Json = False) -> None:
    """Show one model."""
    model = connect().get(model_path(model_id))
    if json_output:
        print_json(model)
        return
    print_table(("", ""), ((key, value) for key, value in model.items()))


@app.command("rm")
def remove(
    model_id: str,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would free, and delete nothing.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Take a model off the list; a converted or downloaded copy is deleted, a folder stays."""
    if dry_run:
        show_removal(connect().get(f"{model_path(model_id)}/removal"), json_output)
        return
    connect().delete(model_path(model_id))
    if json_output:
        print_json({"removed": model_id})
    else:
        say(f"{model_id} is off the list.")


def add_and_wait(
    client: DaemonClient, source: str, name: str, revision: str, *, quiet: bool
) -> dict[str, Any]:
    """Add a model and wait until it is ready.

    Raises:
        SlidepackError: why it cannot be used.
    """
    here = expand_user(source)
    # The daemon has another working directory.
    absolute = str(here.resolve()) if os.path.exists(here) else source
    body = {"source": absolute, "name": name, "revision": revision}
    model: dict[str, Any] = client.post("/models", body)
    with Progress(transient=True, disable=quiet) as progress:
        task = progress.add_task("model", total=None)
        while model["state"] == "importing":
            progress.update(
                task,
                description=f"model: {model['stage'] or 'starting'}",
                completed=model["done"],
                total=model["total"] or None,
            )
            time.sleep(_POLL_SECONDS)
            model = client.get(f"/models/{model['id']}")
    if model["state"] == "failed":
        raise SlidepackError.from_report(ErrorReport(**model["error"]))
    return model
