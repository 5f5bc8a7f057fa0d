"""What deleting something would free, as `rm --dry-run` prints it."""

from typing import Any

import typer

from slidepack.cli.output import print_json, say
from slidepack.engine.contract.errors import CATALOGUE, ErrorReport


def show_removal(removal: dict[str, Any], json_output: bool) -> None:
    """Print what a deletion would do; where it is refused, exit with the code of why."""
    refusal = removal["refusal"]
    if json_output:
        print_json(removal)
    else:
        say(f"It would free {removal['frees_bytes'] / 1e6:,.1f} MB.")
        for word in ("deletes", "keeps"):
            for said in removal[word]:
                say(f"It {word}: {said}")
        if refusal is not None:
            say(ErrorReport(**refusal).line())
    if refusal is not None:
        raise typer.Exit(CATALOGUE[refusal["code"]].exit_code)
