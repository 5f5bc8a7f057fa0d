"""Whatever becomes of a transfer, its memory is given back only when nothing touches it."""

import threading

import pytest
import torch
from support.waiting import PATIENCE

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.transport import Pending
from slidepack.engine.sliding.read_ahead import wait_over

ERRORS = (
    SlidepackError("DISK-FAILED", "a", why="b", fix="c"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    torch.OutOfMemoryError("no room"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_after_any_error_the_others_are_waited_for(error: Exception) -> None:
    failed, slow = Pending(1), Pending(1)
    failed.piece_done(error)
    waiting = threading.Thread(target=wait_over, args=([failed, slow],))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive(), "a transfer is under way"
    slow.piece_done()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
