"""Connections that send files: one at a time sends each, and a newer one takes it over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from slidepack.engine.contract.errors import SlidepackError

__all__ = ["Sender", "Turns", "file_size"]


class Sender:
    """A connection that sends a file. Only the event loop touches it."""

    def __init__(self, stream: AsyncIterator[bytes], idle_seconds: float | None) -> None:
        """Wrap what comes of it; None waits for its bytes as long as they take."""
        self._stream = stream
        self._idle_seconds = idle_seconds
        self._waiting: asyncio.Timeout | None = None
        self.replaced = False
        self.gone = asyncio.Event()
        """It will write nothing any more."""

    async def next(self) -> bytes | None:
        """Return what came next, or None at the end.

        Raises:
            SlidepackError: DATA-IN-USE once it is replaced, DATA-UPLOAD-CUT where nothing comes.
        """
        chunk = None
        if not self.replaced:
            try:
                async with asyncio.timeout(self._idle_seconds) as self._waiting:
                    chunk = await anext(self._stream, None)
            except TimeoutError as error:
                if not self.replaced:
                    raise _silent(self._idle_seconds) from error
            finally:
                self._waiting = None
        if self.replaced:
            raise _taken_over()
        return chunk

    async def replace(self) -> None:
        """End it, and return once it can write nothing more."""
        self.replaced = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())
        await self.gone.wait()


class Turns:
    """Who sends which file now; `receiving` may be read from any thread."""

    def __init__(self) -> None:
        """Nobody sends anything yet."""
        self._senders: dict[tuple[str, int], Sender] = {}

    def receiving(self) -> set[str]:
        """Return the drafts of which a file is being sent."""
        return {draft_id for draft_id, _ in tuple(self._senders)}

    @contextlib.asynccontextmanager
    async def take(
        self, key: tuple[str, int], sender: Sender, path: Path, offset: int
    ) -> AsyncIterator[None]:
        """Let only this connection send a file, from its present end on.

        Args:
            key: a draft, and the number of the file in it.
            sender: the connection.
            path: of the file.
            offset: where the connection's bytes begin.

        Raises:
            SlidepackError: DATA-UPLOAD-OFFSET.
        """
        # Who is wrong about the end of the file ends nobody.
        _require_end(path, offset)
        while (older := self._senders.get(key)) is not None:
            await older.replace()
        self._senders[key] = sender
        try:
            # The older one may have been in the middle of writing.
            _require_end(path, offset)
            yield
        finally:
            del self._senders[key]
            sender.gone.set()


def file_size(path: Path) -> int:
    """Return how much of a file is there, in bytes; 0 where it is not."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _require_end(path: Path, offset: int) -> None:
    if (there := file_size(path)) != offset:
        raise SlidepackError(
            "DATA-UPLOAD-OFFSET",
            "The upload does not go on from there.",
            why=f"{there} bytes are here, and these begin at {offset}",
            fix="Ask how far it is, and send what is missing.",
        )


def _taken_over() -> SlidepackError:
    return SlidepackError(
        "DATA-IN-USE",
        "This file is being sent by a newer connection.",
        why="another tab, window or program goes on with the same upload",
        fix="Leave it to that one, or drop the file again to send it from here.",
    )


def _silent(seconds: float | None) -> SlidepackError:
    return SlidepackError(
        "DATA-UPLOAD-CUT",
        "The upload broke off.",
        why=f"nothing came for {seconds:g} seconds",
        fix="Drop the same file again: it goes on from there.",
    )
