"""The ring moves every byte, in order, both ways at once, and says what went wrong."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.files import ALIGNMENT, STRIPE_BYTES, TierFile
from slidepack.engine.nvme.ring import RingTransport

Memory = Callable[..., Tensor]


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize(
    "size", [ALIGNMENT, STRIPE_BYTES, 3 * STRIPE_BYTES + 5 * ALIGNMENT, 7 * STRIPE_BYTES]
)
def test_what_is_written_comes_back(
    parts: int, size: int, ring: RingTransport, memory: Memory, folders: list[Path]
) -> None:
    paths = [folder / "unit" for folder in folders[:parts]]
    file = TierFile.create(paths, size)
    source, back = memory(size, seed=1), memory(size)
    ring.write(file, 0, source).wait()
    file.sync()
    file.close()
    assert sum(path.stat().st_size for path in paths) == size
    file = TierFile.open(paths, size)
    ring.read(file, 0, back).wait()
    assert torch.equal(source, back)
    file.close()


def test_parts_of_a_file_are_moved_by_themselves(
    ring: RingTransport, memory: Memory, folders: list[Path]
) -> None:
    size = 5 * STRIPE_BYTES + 3 * ALIGNMENT
    file = TierFile.create([folder / "unit" for folder in folders], size)
    expected = memory(size, seed=2)
    ring.write(file, 0, expected).wait()
    at, part = 2 * STRIPE_BYTES - 2 * ALIGNMENT, memory(STRIPE_BYTES + 7 * ALIGNMENT, seed=3)
    ring.write(file, at, part).wait()
    expected[at : at + part.numel()] = part
    back = memory(size)
    halves = [ring.read(file, 0, back[:at]), ring.read(file, at, back[at:])]
    for half in halves:
        half.wait()
        assert half.done()
    assert torch.equal(back, expected)
    file.close()


def test_many_transfers_both_ways_at_once(
    ring: RingTransport, memory: Memory, tmp_path: Path
) -> None:
    size, count = STRIPE_BYTES + ALIGNMENT, 8
    old = TierFile.create(tmp_path / "old", size * count)
    new = TierFile.create(tmp_path / "new", size * count)
    sources = [memory(size, seed=number) for number in range(count)]
    first = [ring.write(old, n * size, source) for n, source in enumerate(sources)]
    for pending in first:
        pending.wait()
    targets = [memory(size) for _ in range(count)]
    reads = [ring.read(old, n * size, target) for n, target in enumerate(targets)]
    writes = [ring.write(new, n * size, source) for n, source in enumerate(reversed(sources))]
    for pending in [*reads, *writes]:
        pending.wait()
    assert all(map(torch.equal, sources, targets))
    back = memory(size * count)
    ring.read(new, 0, back).wait()
    assert torch.equal(back, torch.cat(sources[::-1]))
    old.close()
    new.close()


def test_short_transfers_are_continued(memory: Memory, tmp_path: Path) -> None:
    def short(move: Callable[..., int]) -> Callable[..., int]:
        def some(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
            return move(descriptor, [views[0][: 3 * ALIGNMENT]], offset)

        return some

    ring = RingTransport(preadv=short(os.preadv), pwritev=short(os.pwritev))
    size = 50 * ALIGNMENT
    file = TierFile.create(tmp_path / "unit", size)
    source, back = memory(size, seed=4), memory(size)
    ring.write(file, 0, source).wait()
    ring.read(file, 0, back).wait()
    assert torch.equal(source, back)
    ring.close()
    file.close()


def test_a_transfer_cut_at_an_odd_byte_goes_on_through_the_page_cache(
    memory: Memory, tmp_path: Path
) -> None:
    def odd(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
        if len(views[0]) == size:
            return os.pwritev(descriptor, [views[0][:ALIGNMENT]], offset) - 1
        return os.pwritev(descriptor, views, offset)

    ring = RingTransport(pwritev=odd)
    size = 8 * ALIGNMENT
    file = TierFile.create(tmp_path / "unit", size)
    source, back = memory(size, seed=5), memory(size)
    ring.write(file, 0, source).wait()
    ring.read(file, 0, back).wait()
    assert torch.equal(source, back)
    assert not file.direct
    assert "odd byte" in ring.reason
    ring.close()
    file.close()


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [
        (errno.EIO, "DISK-FAILED", "smartctl"),
        (errno.ENOSPC, "DISK-FULL", "nvme_folders"),
        (errno.EROFS, "DISK-UNWRITABLE", "read-only"),
    ],
)
def test_a_failure_is_raised_at_every_wait_and_ends_all_that_follows(
    number: int, code: str, told: str, memory: Memory, tmp_path: Path
) -> None:
    def fail(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
        if offset == STRIPE_BYTES:
            raise OSError(number, os.strerror(number))
        return os.pwritev(descriptor, views, offset)

    ring = RingTransport(pwritev=fail)
    file = TierFile.create(tmp_path / "unit", 3 * STRIPE_BYTES)
    pending = ring.write(file, 0, memory(3 * STRIPE_BYTES, seed=6))
    for _ in range(2):
        with pytest.raises(SlidepackError, match=code) as caught:
            pending.wait()
    assert pending.done()
    report = caught.value.report
    assert errno.errorcode[number] in report.why
    assert f"at byte {STRIPE_BYTES} of {tmp_path / 'unit'}" in report.why
    assert told in report.fix
    with pytest.raises(SlidepackError, match=code):
        ring.read(file, 0, memory(ALIGNMENT)).wait()
    ring.close()
    file.close()


def test_a_read_of_nothing_is_a_failure(memory: Memory, tmp_path: Path) -> None:
    ring = RingTransport()
    file = TierFile.create(tmp_path / "unit", 4 * ALIGNMENT)
    os.truncate(tmp_path / "unit", ALIGNMENT)
    with pytest.raises(SlidepackError, match=r"DISK-FAILED.*0 bytes were moved"):
        ring.read(file, 0, memory(4 * ALIGNMENT)).wait()
    ring.close()
    file.close()


def test_an_exception_of_a_thread_surfaces_at_the_wait(memory: Memory, tmp_path: Path) -> None:
    def broken(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
        raise ZeroDivisionError("in a thread")

    ring = RingTransport(preadv=broken)
    file = TierFile.create(tmp_path / "unit", ALIGNMENT)
    with pytest.raises(ZeroDivisionError, match="in a thread"):
        ring.read(file, 0, memory(ALIGNMENT)).wait()
    ring.close()
    file.close()


def test_requests_of_a_direction_are_taken_in_order_and_reads_pass_writes(
    memory: Memory, tmp_path: Path
) -> None:
    gate, seen = threading.Event(), []

    def held(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
        gate.wait()
        seen.append(offset // ALIGNMENT)
        return os.pwritev(descriptor, views, offset)

    ring = RingTransport(threads=1, pwritev=held)
    file = TierFile.create(tmp_path / "unit", 16 * ALIGNMENT)
    order = [3, 1, 4, 15, 9, 2, 6]
    page = memory(ALIGNMENT, seed=7)
    writes = [ring.write(file, place * ALIGNMENT, page) for place in order]
    ring.read(file, 0, memory(ALIGNMENT)).wait()
    assert not any(write.done() for write in writes)
    gate.set()
    for write in writes:
        write.wait()
    assert seen == order
    ring.close()
    file.close()


def test_closing_finishes_what_runs_and_gives_up_what_waits(memory: Memory, tmp_path: Path) -> None:
    begun, gate = threading.Event(), threading.Event()

    def held(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
        begun.set()
        gate.wait()
        return os.pwritev(descriptor, views, offset)

    ring = RingTransport(threads=1, pwritev=held)
    file = TierFile.create(tmp_path / "unit", 2 * ALIGNMENT)
    page = memory(ALIGNMENT, seed=8)
    running, waiting = ring.write(file, 0, page), ring.write(file, ALIGNMENT, page)
    begun.wait()
    closing = threading.Thread(target=ring.close)
    closing.start()
    with pytest.raises(SlidepackError, match="RUN-INTERRUPTED"):
        waiting.wait()
    assert closing.is_alive()
    gate.set()
    running.wait()
    closing.join()
    with pytest.raises(ValueError, match="closed"):
        ring.read(file, 0, page)
    back = RingTransport()
    found = memory(2 * ALIGNMENT)
    back.read(file, 0, found).wait()
    assert torch.equal(found[:ALIGNMENT], page)
    assert not found[ALIGNMENT:].any()
    back.close()
    file.close()


def test_requests_that_are_not_aligned_are_refused(
    ring: RingTransport, memory: Memory, tmp_path: Path
) -> None:
    file = TierFile.create(tmp_path / "unit", 2 * ALIGNMENT)
    page = memory(2 * ALIGNMENT)
    for wrong in (page[:100], page[1 : ALIGNMENT + 1], page.view(2, -1), page.view(torch.int8)):
        with pytest.raises(ValueError, match="aligned"):
            ring.write(file, 0, wrong)
    for offset in (-ALIGNMENT, 1, ALIGNMENT, 2 * ALIGNMENT):
        with pytest.raises(ValueError, match="of a tier file"):
            ring.write(file, offset, page)
    file.close()


def test_a_file_system_that_takes_the_flag_and_refuses_the_request_gets_buffered_io(
    memory: Memory, tmp_path: Path
) -> None:
    def refusing(move: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, views: Sequence[memoryview], offset: int) -> int:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return move(descriptor, views, offset)

        return call

    ring = RingTransport(preadv=refusing(os.preadv), pwritev=refusing(os.pwritev))
    file = TierFile.create(tmp_path / "unit", 5 * STRIPE_BYTES)
    source, back = memory(5 * STRIPE_BYTES, seed=9), memory(5 * STRIPE_BYTES)
    ring.write(file, 0, source).wait()
    ring.read(file, 0, back).wait()
    assert torch.equal(source, back)
    assert ring.reason.startswith("through the page cache: the file system refuses O_DIRECT")
    ring.close()
    file.close()


_LIMITED = """
import sys
import torch
from pathlib import Path
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.files import TierFile
from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.sliding.slab import Slab
import resource, signal

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = 4 << 20
ring, file = RingTransport(), TierFile.create(Path(sys.argv[1]), size)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    ring.write(file, 0, Slab(size, pin=False).take(size, torch.uint8, alignment=4096)).wait()
except SlidepackError as error:
    sys.exit(error.report.line())
"""


def test_a_write_that_the_system_cuts_short_and_then_refuses(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path / "unit")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("DISK-FULL")
    assert "(EFBIG)" in ended.stderr
    assert f"at byte {1 << 20}" in ended.stderr
