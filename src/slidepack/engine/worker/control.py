"""Reads the control file: commands that the daemon appends while the worker runs."""

from collections.abc import Iterator
from pathlib import Path

from slidepack.engine.contract.control import ControlCommand, decode_command
from slidepack.engine.contract.events import split_complete_lines


class ControlReader:
    """Hands out each command once, in order."""

    def __init__(self, path: Path) -> None:
        """Start at the beginning of the file, which need not exist yet."""
        self._path = path
        self._offset = 0

    def new_commands(self) -> Iterator[ControlCommand]:
        """Yield the commands appended since the last call.

        Raises:
            msgspec.ValidationError: a line is not a command; the daemon writes no other.
        """
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        for line in split_complete_lines(data):
            self._offset += len(line) + 1
            yield decode_command(line)
