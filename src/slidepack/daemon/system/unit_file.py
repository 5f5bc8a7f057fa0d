"""The text of the unit files: one shipped template each, made to fit this machine."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

UNIT_NAME: Final = "slidepack.service"
MARKER: Final = "# Written by `slidepack service install`"
_HEAD: Final = (
    f"{MARKER}, which replaces it; `slidepack service uninstall` removes it.\n"
    "# Changes of your own belong into a drop-in: `systemctl {manager}edit slidepack`.\n"
)
_FOLDER: Final = Path(__file__).parent / "units"
_TEMPLATES: Final = {False: "slidepack.service", True: "slidepack-system.service"}
_PLACES: Final = ("SLIDEPACK_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
"""Variables that decide where files are. A service does not see those of a shell."""
_GROUPS: Final = "SupplementaryGroups="
_NOT_IN_A_PROGRAM: Final = frozenset("'\"\\\n\t\r")
"""What systemd bears in an argument, and in the path of a program refuses however it is written."""
_THROUGH_A_SHELL: Final = ("/bin/sh", "-c", 'exec "$0" "$@"')
"""The shell becomes the program, so that systemd still knows the process."""
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "%": "%%", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def template(*, system: bool) -> str:
    """Return the text of a unit as it is shipped."""
    return (_FOLDER / _TEMPLATES[system]).read_text("utf-8")


def this_command(executable: str = sys.executable) -> list[str]:
    """Return the command that runs this very installation of Slidepack."""
    script = Path(executable).with_name("slidepack")
    if os.access(script, os.X_OK):
        return [str(script), "serve"]
    # As after `pip install --user`, where the script is somewhere else.
    return [executable, "-P", "-m", "slidepack.cli", "serve"]


def places(environment: Mapping[str, str], data_dir: Path | None) -> dict[str, str]:
    """Return the variables that make a user's service find the files that the shell finds."""
    found = {name: environment[name] for name in _PLACES if environment.get(name)}
    if data_dir is not None:
        found["SLIDEPACK_HOME"] = str(data_dir)
    return found


def render(
    *,
    system: bool,
    command: Sequence[str],
    variables: Mapping[str, str],
    writable: Sequence[Path] = (),
    groups: Collection[str] = (),
) -> str:
    """Return the unit for this machine.

    Args:
        system: a service of the machine instead of one of a user.
        command: the program, by its absolute path, and its arguments.
        variables: set for the daemon; they replace those of the same name.
        writable: further folders that the system's service may write to.
        groups: the groups that this machine has; others cannot be asked for.
    """
    lines = [_HEAD.format(manager="" if system else "--user ").rstrip("\n")]
    for line in template(system=system).rstrip("\n").split("\n"):
        if line.startswith("ExecStart="):
            lines.append(f"ExecStart={exec_line(command)}")
            lines.extend(f"Environment={quoted(f'{k}={v}')}" for k, v in variables.items())
        elif line.startswith(_GROUPS):
            known = [name for name in line.removeprefix(_GROUPS).split() if name in groups]
            lines.extend([_GROUPS + " ".join(known)] if known else [])
        elif line.startswith("ReadWritePaths="):
            lines.append(" ".join([line, *(quoted(str(path)) for path in writable)]))
        elif not line.startswith(tuple(f"Environment={name}=" for name in variables)):
            lines.append(line)
    return "\n".join(lines) + "\n"


def exec_line(command: Sequence[str]) -> str:
    """Return a command as `ExecStart=` takes it, word for word."""
    if set(command[0]) & _NOT_IN_A_PROGRAM:
        command = [*_THROUGH_A_SHELL, *command]
    # With the colon, systemd leaves dollar signs alone.
    return " ".join([quoted(f":{command[0]}"), *(quoted(word) for word in command[1:])])


def quoted(text: str) -> str:
    """Return one word of a unit file: quoted where it must be, with no specifier in it."""
    escaped = "".join(_ESCAPES.get(char, char) for char in text)
    plain = escaped == text and text and not set(text) & set(" ;'")
    return text if plain else f'"{escaped}"'
