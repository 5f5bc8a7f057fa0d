"""The queues of a transport: one for each direction, so that neither starves."""

import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.files import Check, Piece, TierFile
from slidepack.engine.nvme.transport import Pending, check_memory

THREADS: Final = 8
"""In each direction."""
PIECE_BYTES: Final = 4 << 20


class Task(NamedTuple):
    """One piece of a request."""

    file: TierFile
    offset: int
    """Of the request in the file, in bytes."""
    piece: Piece
    memory: Tensor
    """All of the request's."""
    after: torch.cuda.Event | None
    pending: Pending


Transfer = Callable[[Task], None]
"""Moves a piece; raises SlidepackError where the drive does not."""


class Lanes:
    """Takes requests, cuts them up, and has threads move the pieces in the order given."""

    def __init__(self, read: Transfer, write: Transfer, threads: int) -> None:
        """Start `threads` threads for each direction."""
        self._failure: Exception | None = None
        self._lanes = {
            verb: _Lane(verb, transfer, threads, self._failed)
            for verb, transfer in (("read", read), ("write", write))
        }

    def begin(
        self,
        verb: str,
        file: TierFile,
        offset: int,
        memory: Tensor,
        after: torch.cuda.Event | None,
    ) -> Pending:
        """Queue a request; see `Transport.read`."""
        check_memory(memory)
        pieces = list(file.pieces(offset, memory.numel(), PIECE_BYTES))
        if self._failure is not None:
            refused = Pending(1)
            refused.piece_done(self._failure)
            return refused
        pending = Pending(len(pieces))
        self._lanes[verb].put(
            [Task(file, offset, piece, memory, after, pending) for piece in pieces]
        )
        return pending

    def close(self) -> None:
        """End the threads; what has not begun is given up."""
        for lane in self._lanes.values():
            lane.close()

    def _failed(self, error: Exception) -> None:
        self._failure = self._failure or error


class _Lane:
    """One direction: its queue and its threads."""

    def __init__(
        self, verb: str, transfer: Transfer, threads: int, failed: Callable[[Exception], None]
    ) -> None:
        self._verb = verb
        self._transfer = transfer
        self._failed = failed
        self._tasks: deque[Task] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"nvme-{verb}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, tasks: Sequence[Task]) -> None:
        with self._changed:
            if self._closed:
                raise ValueError("the transport is closed")
            self._tasks.extend(tasks)
            self._changed.notify(len(tasks))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            given_up = list(self._tasks)
            self._tasks.clear()
            self._changed.notify_all()
        for task in given_up:
            task.pending.piece_done(_given_up(self._verb))
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            error: Exception | None = None
            try:
                if not task.pending.failed():
                    if task.after is not None:
                        task.after.synchronize()
                    if self._verb == "write":
                        _check(task)
                    self._transfer(task)
            except Exception as raised:  # noqa: BLE001  # it is raised again where the run waits
                self._failed(raised)
                error = raised
            task.pending.piece_done(error)
            # A thread that waits must not keep the memory of what it moved last.
            del task

    def _next(self) -> Task | None:
        with self._changed:
            while not self._tasks:
                if self._closed:
                    return None
                self._changed.wait()
            return self._tasks.popleft()


def _check(task: Task) -> None:
    """Note the digest of what is about to be written.

    By the thread that writes it: one alone would be slower than the drive.
    """
    if task.file.checks is None:
        return
    piece, first = task.piece, task.offset + task.piece.start
    memory = task.memory[piece.start : piece.start + piece.size]
    if memory.is_cuda:
        # It never passes through main memory; nothing is better than what was true before.
        task.file.checks.pop(first, None)
    else:
        task.file.checks[first] = Check(piece.size, zlib.crc32(memory.numpy().data))


def _given_up(verb: str) -> SlidepackError:
    return SlidepackError(
        "RUN-INTERRUPTED",
        f"A {verb} of training state was given up.",
        why="the run ended before the drive came to it",
        fix="Resume the run; it begins from its last checkpoint.",
    )
