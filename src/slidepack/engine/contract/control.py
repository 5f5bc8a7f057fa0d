"""The control file: commands for a running worker, appended by the daemon, one JSON a line.

The worker reads it between steps and answers each command with a `control_done` event.
"""

from typing import Literal

import msgspec

from slidepack.engine.contract.job import Frozen


class ControlCommand(Frozen, frozen=True, kw_only=True):
    """One command."""

    command_id: str
    kind: Literal["checkpoint", "stop", "join", "leave"]
    """`checkpoint`: write one now and go on. `stop`: write one and leave (as SIGTERM does). In a
    pack these are for every lane, and a lane may `join` it, or `leave` it with a checkpoint."""
    lane: str = ""
    """Who joins or leaves."""
    folder: str = ""
    """Run folder of the lane that joins."""
    priority: int = 0
    """Of the lane that joins (`LaneRef`)."""
    reason: str = ""
    """Why it leaves."""


_decoder = msgspec.json.Decoder(ControlCommand)


def encode_command(command: ControlCommand) -> bytes:
    """Return the command as one line of JSON, newline included."""
    return msgspec.json.encode(command) + b"\n"


def decode_command(line: bytes) -> ControlCommand:
    """Parse one line.

    Raises:
        msgspec.ValidationError: the line is not a command of this version.
    """
    return _decoder.decode(line)
