"""Tells a running pack who joins and who leaves, by its control file."""

import os
from pathlib import Path

from slidepack.engine.contract.control import ControlCommand, encode_command
from slidepack.engine.contract.pack import PackFolder

__all__ = ["is_expected", "send"]


def send(folder: PackFolder, command: ControlCommand) -> None:
    """Append a command, whole or not at all.

    Raises:
        OSError: the disk refused; nothing was appended.
    """
    line = encode_command(command)
    with folder.control.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            written = file.write(line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
            os.fsync(file.fileno())
        except OSError:
            # Half a line would spoil the next one.
            file.truncate(before)
            raise


def is_expected(folder: PackFolder, lane: str, run_folder: Path) -> bool:
    """Return whether the pack was told of a lane, at its start or since.

    A daemon that dies between recording a lane and telling the pack leaves one that nobody expects.

    Raises:
        SlidepackError: RUN-FOLDER-BROKEN.
        OSError: the disk does not tell.
    """
    wanted = str(run_folder)
    if any((ref.lane, ref.folder) == (lane, wanted) for ref in folder.read_pack().lanes):
        return True
    try:
        return wanted.encode() in folder.control.read_bytes()
    except FileNotFoundError:
        return False
