"""How training state moves between a drive and memory: one interface, two ways behind it."""

import threading
from typing import Protocol

import torch
from torch import Tensor

from slidepack.engine.nvme.files import ALIGNMENT, TierFile, padded

__all__ = ["ALIGNMENT", "Pending", "TierFile", "Transport", "padded"]


class Pending:
    """A transfer that may still be under way; one request, whole, whatever its pieces are."""

    def __init__(self, pieces: int) -> None:
        """Begin with `pieces` outstanding; none is done at once."""
        self._left = pieces
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: Exception | None = None
        if not pieces:
            self._over.set()

    def wait(self) -> None:
        """Block until every piece is done; after a failure, until none touches the memory.

        Raises:
            SlidepackError: DISK-FULL, DISK-UNWRITABLE or DISK-FAILED, at each call; RUN-INTERRUPTED
                where the transport was closed first.
        """
        self._over.wait()
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Return whether `wait` would not block; a failure is done as well."""
        return self._over.is_set()

    def failed(self) -> bool:
        """Return whether a piece has failed; those that have not begun are not worth it then."""
        return self._error is not None

    def piece_done(self, error: Exception | None = None) -> None:
        """Count a piece off; the first error stays. For transports only."""
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            if self._left == 0:
                self._over.set()


class Transport(Protocol):
    """Moves bytes between tier files and tensors.

    Requests of one direction are taken in the order given, and neither direction waits for the
    other. A read of what a write puts there must be given after that write's `wait`. After the
    first failure every later request fails with it: a state with a hole is not trained on.
    """

    name: str
    """"ring" or "kvikio"."""

    @property
    def reason(self) -> str:
        """Which way it works and why, as a phrase for the user."""

    @property
    def takes_device_memory(self) -> bool:
        """Whether tensors may lie on the GPU."""

    def read(
        self, file: TierFile, offset: int, into: Tensor, after: torch.cuda.Event | None = None
    ) -> Pending:
        """Fill a tensor from a file.

        Args:
            file: open until the transfer is done.
            offset: bytes, a multiple of `ALIGNMENT`.
            into: uint8, flat and contiguous, its address and size multiples of `ALIGNMENT`.
            after: work on a stream that must be over before the memory is touched.

        Raises:
            ValueError: the request is not aligned or not within the file.
        """

    def write(
        self, file: TierFile, offset: int, source: Tensor, after: torch.cuda.Event | None = None
    ) -> Pending:
        """Put a tensor into a file; arguments and errors as for `read`."""

    def close(self) -> None:
        """End it: what is under way is finished, what waits is given up."""


def check_memory(memory: Tensor) -> None:
    """Refuse a tensor that no transport can move.

    Raises:
        ValueError: it is not flat bytes, or not aligned.
    """
    flat = memory.dtype == torch.uint8 and memory.dim() == 1 and memory.is_contiguous()
    if not flat or memory.data_ptr() % ALIGNMENT or memory.numel() % ALIGNMENT:
        raise ValueError(
            f"a transfer takes flat uint8 aligned to {ALIGNMENT}, not {memory.dtype} of shape "
            f"{tuple(memory.shape)} at address {memory.data_ptr():#x}"
        )
