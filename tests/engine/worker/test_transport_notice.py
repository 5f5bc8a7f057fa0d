"""A file system that refuses O_DIRECT in the middle of a run is told of when it does."""

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from slidepack.engine.nvme.files import ALIGNMENT, TierFile
from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.worker.transport_notice import CODE, TransportNotice


def test_it_is_told_once_and_when_it_happens(tmp_path: Path) -> None:
    refuses = False

    def pwritev(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
        if refuses and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return os.pwritev(descriptor, views, offset)

    told: list[tuple[str, str]] = []
    ring = RingTransport(pwritev=pwritev)
    notice = TransportNotice(ring, lambda code, message: told.append((code, message)))
    file = TierFile.create(tmp_path / "unit", ALIGNMENT)
    page = Slab(ALIGNMENT, pin=False).take(ALIGNMENT, torch.uint8, alignment=ALIGNMENT)
    direct = file.direct
    ring.write(file, 0, page).wait()
    notice.after_step()
    # Where the tests' own file system knows no O_DIRECT, that was a change already.
    assert (told == []) is direct
    refuses = True
    ring.write(file, 0, page).wait()
    notice.after_step()
    notice.after_step()
    ring.close()
    file.close()
    ((code, message),) = told
    assert code == CODE
    assert "through the page cache: the file system refuses O_DIRECT" in message
