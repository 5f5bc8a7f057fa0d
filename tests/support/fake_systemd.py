"""A `systemctl` that writes down what it was asked for, and fails where a test wants it to."""

import os
from pathlib import Path

_SCRIPT = """#!/bin/sh
folder="{folder}"
verb=""
for word in "$@"; do
    case "$word" in -*) ;; *) verb="$word"; break ;; esac
done
echo "$(basename "$0") $*" >> "$folder/calls"
if [ -e "$folder/hang-$verb" ]; then exec sleep 600; fi
if [ -e "$folder/fail-$verb" ]; then cat "$folder/fail-$verb" >&2; exit 1; fi
if [ -e "$folder/answer-$verb" ]; then cat "$folder/answer-$verb"; fi
"""


class FakeSystemd:
    """Executables in a folder that goes first on PATH."""

    def __init__(self, folder: Path) -> None:
        """Write them."""
        self._folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        for name in ("systemctl", "loginctl", "useradd"):
            script = self.bin / name
            script.write_text(_SCRIPT.format(folder=folder))
            script.chmod(0o755)
        self.answer("show", ActiveState="inactive", LoadState="not-found")
        self.answer("show-user", Linger="no")

    @property
    def path(self) -> str:
        """A PATH that finds them first."""
        return f"{self.bin}{os.pathsep}{os.environ['PATH']}"

    @property
    def calls(self) -> list[str]:
        """What was run, with its arguments, in this order; questions are left out."""
        log = self._folder / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in lines if " show" not in line]

    def answer(self, verb: str, **properties: str) -> None:
        """Set what a question is answered with."""
        lines = "".join(f"{name}={value}\n" for name, value in properties.items())
        (self._folder / f"answer-{verb}").write_text(lines)

    def fail(self, verb: str, message: str) -> None:
        """Let a verb fail."""
        (self._folder / f"fail-{verb}").write_text(message)

    def hang(self, verb: str) -> None:
        """Let a verb never return."""
        (self._folder / f"hang-{verb}").touch()
