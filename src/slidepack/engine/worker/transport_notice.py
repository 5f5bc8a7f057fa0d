"""Tells when a file system stops taking state the way that the run began with."""

from collections.abc import Callable
from typing import Final

from slidepack.engine.nvme.transport import Transport

__all__ = ["CODE", "TransportNotice"]

CODE: Final = "DISK-WAY-CHANGED"


class TransportNotice:
    """Reports each change once, where it happens: the run's start has told how it began."""

    def __init__(self, transport: Transport, warn: Callable[[str, str], None]) -> None:
        """Note how state is moved now.

        Args:
            transport: of the run; its `reason` changes where a request is refused later.
            warn: reports a code and a sentence.
        """
        self._transport = transport
        self._warn = warn
        self._told = transport.reason

    def after_step(self) -> None:
        """Report another way than the last one told."""
        now = self._transport.reason
        if now == self._told:
            return
        before, self._told = self._told, now
        self._warn(
            CODE,
            f"State now goes to the drives and back another way ({self._transport.name}: {now}); "
            f"before it was {before}. The results stay the same; a step may take longer.",
        )
