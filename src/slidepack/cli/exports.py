"""`slidepack exports`: what the daemon keeps of results in other programs' forms."""

from typing import Annotated, Any, Final

import typer

from slidepack.cli.client import connect
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say

app = typer.Typer(help="Exports that the daemon keeps.", no_args_is_help=True)

ExportId = Annotated[int, typer.Argument(help="Id of an export.", metavar="EXPORT")]

_MEGA: Final = 1e6


@app.command("list")
def list_exports(json_output: Json = False) -> None:
    """List the exports, newest first; also those whose jobs were deleted."""
    exports = connect().get("/exports")
    if json_output:
        print_json(exports)
        return
    print_table(
        ("id", "job", "name", "form", "state", "MB", "folder"),
        (
            (
                export["id"],
                export["job_id"],
                export["wanted"]["name"] or export["job_name"],
                form_of(export),
                _state(export),
                f"{export['bytes'] / _MEGA:,.1f}" if export["bytes"] else "",
                export["folder"] if export["state"] == "done" else "",
            )
            for export in exports
        ),
    )


@app.command("cancel")
def cancel(export_id: ExportId, json_output: Json = False) -> None:
    """End an export that has not ended; nothing of it is kept."""
    export = connect().post(f"/exports/{export_id}/cancel")
    if json_output:
        print_json(export)
    else:
        say(f"Export {export_id} is {'asked to end' if export['cancelling'] else 'cancelled'}.")


@app.command("rm")
def remove(export_id: ExportId, json_output: Json = False) -> None:
    """Delete an export with its files; the job keeps its result."""
    removed = connect().delete(f"/exports/{export_id}")
    if json_output:
        print_json(removed)
    else:
        say(f"Export {export_id} is deleted; that frees {removed['freed_bytes'] / _MEGA:,.1f} MB.")


def form_of(export: dict[str, Any]) -> str:
    """Return the form of an export in a word or two, as `gguf q8_0`."""
    wanted = export["wanted"]
    if wanted["adapter_only"]:
        return "gguf lora"
    return f"{wanted['format']} {wanted['quant']}" if wanted["quant"] != "f16" else wanted["format"]


def _state(export: dict[str, Any]) -> str:
    if export["state"] == "running" and export["total"]:
        return f"{export['stage']} {export['done'] / export['total']:.0%}"
    error = export["error"]
    return f"failed: {error['code']}" if error else str(export["state"])
