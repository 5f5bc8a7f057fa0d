"""Tier files: exact, allocated before anything is written, and honest about O_DIRECT."""

import errno
import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.disks import small_disk
from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.choose import open_transport, require_room
from slidepack.engine.nvme.failures import number_in
from slidepack.engine.nvme.files import ALIGNMENT, STRIPE_BYTES, TierFile, padded, part_bytes
from slidepack.engine.nvme.ring import RingTransport

Memory = Callable[..., Tensor]


@pytest.fixture
def no_direct(tmp_path: Path) -> Iterator[Path]:
    """A file system that knows no O_DIRECT."""
    mount = tmp_path / "ramfs"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "ramfs", "slidepack-test", str(mount)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no mount is allowed here: {made.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("pages", [1, 1024, 1025, 5000, 12_288, 12_289])
def test_parts_of_a_striped_file_are_its_size_and_its_pieces_cover_them_once(
    parts: int, pages: int, tmp_path: Path
) -> None:
    size = pages * ALIGNMENT
    folders = [tmp_path / str(number) for number in range(parts)]
    for folder in folders:
        folder.mkdir()
    paths = [folder / "unit" for folder in folders]
    file = TierFile.create(paths, size)
    found = [path.stat().st_size for path in paths]
    assert found == [part_bytes(size, part, parts) for part in range(parts)]
    assert sum(found) == size
    seen: list[set[int]] = [set() for _ in paths]
    at = 0
    for piece in file.pieces(0, size, STRIPE_BYTES):
        assert piece.start == at
        at += piece.size
        pages_of = range(piece.offset // ALIGNMENT, (piece.offset + piece.size) // ALIGNMENT)
        assert seen[piece.part].isdisjoint(pages_of)
        seen[piece.part].update(pages_of)
    assert at == size
    assert [len(part) * ALIGNMENT for part in seen] == found
    file.close()


def test_a_file_is_allocated_at_once(tmp_path: Path) -> None:
    size = 3 * STRIPE_BYTES
    TierFile.create(tmp_path / "unit", size).close()
    assert (tmp_path / "unit").stat().st_blocks * 512 >= size


def test_a_file_that_exists_is_never_taken_over(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"precious")
    with pytest.raises(SlidepackError, match=r"DISK-UNWRITABLE.*EEXIST"):
        TierFile.create([tmp_path / "a", tmp_path / "b"], 4 * STRIPE_BYTES)
    assert (tmp_path / "b").read_bytes() == b"precious"
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("size", [0, -ALIGNMENT, 1, ALIGNMENT + 512])
def test_a_size_that_no_drive_takes_is_refused(size: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiple of 4096"):
        TierFile.create(tmp_path / "unit", size)
    assert padded(ALIGNMENT + 512) == 2 * ALIGNMENT


def test_a_file_of_another_size_or_none_is_not_opened(tmp_path: Path) -> None:
    TierFile.create(tmp_path / "unit", 2 * ALIGNMENT).close()
    with pytest.raises(SlidepackError, match=r"DISK-FAILED.*8192 bytes, 4096 were written"):
        TierFile.open(tmp_path / "unit", ALIGNMENT)
    with pytest.raises(SlidepackError, match=r"DISK-FAILED.*ENOENT"):
        TierFile.open(tmp_path / "other", ALIGNMENT)


def test_a_full_drive_is_found_before_anything_is_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        folders = [tmp_path, disk.mount]
        require_room(folders, [16 << 20, 8 << 20])
        with pytest.raises(SlidepackError, match=r"DISK-FULL.*0\.0 GB are needed"):
            require_room([disk.mount], [16 << 20, 1 << 20])
        before = disk.free_bytes
        with pytest.raises(SlidepackError, match=r"DISK-FULL.*ENOSPC") as caught:
            TierFile.create([tmp_path / "unit", disk.mount / "unit"], 64 << 20)
        assert str(disk.mount / "unit") in caught.value.report.why
        assert disk.free_bytes == before
        assert not (tmp_path / "unit").exists()


def test_a_read_only_file_system_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        TierFile.create(disk.mount / "unit", ALIGNMENT).close()
        disk.remount("ro")
        with pytest.raises(SlidepackError, match=r"DISK-UNWRITABLE.*EROFS"):
            TierFile.create(disk.mount / "new", ALIGNMENT)
        with pytest.raises(SlidepackError, match=r"DISK-UNWRITABLE.*EROFS"):
            TierFile.open(disk.mount / "unit", ALIGNMENT)
        disk.remount("rw")


def test_a_file_system_without_o_direct_is_used_and_told(
    no_direct: Path, ring: RingTransport, memory: Memory
) -> None:
    size = 2 * STRIPE_BYTES + ALIGNMENT
    file = TierFile.create(no_direct / "unit", size)
    assert not file.direct
    source, back = memory(size, seed=1), memory(size)
    ring.write(file, 0, source).wait()
    ring.read(file, 0, back).wait()
    assert torch.equal(source, back)
    assert ring.reason.startswith("through the page cache: the file system refuses O_DIRECT")
    file.close()


def test_where_one_part_refuses_o_direct_no_part_uses_it(tmp_path: Path) -> None:
    (tmp_path / "unit").touch()
    # The second part is on a file system that knows no O_DIRECT.
    paths = [tmp_path / "unit", Path("/proc/self/oom_score_adj")]
    for order in (paths, paths[::-1]):
        descriptors = [os.open(path, os.O_RDWR) for path in order]
        file = TierFile(order, ALIGNMENT, descriptors, None)
        assert not file.direct
        flags = [fcntl.fcntl(file.descriptor(part), fcntl.F_GETFL) for part in range(2)]
        assert not any(one & os.O_DIRECT for one in flags)
        file.close()


def test_links_keep_what_a_file_held(ring: RingTransport, memory: Memory, tmp_path: Path) -> None:
    first = TierFile.create(tmp_path / "first", ALIGNMENT)
    page = memory(ALIGNMENT, seed=2)
    ring.write(first, 0, page).wait()
    first.sync()
    os.link(first.paths[0], tmp_path / "kept")
    first.close()
    os.unlink(tmp_path / "first")
    kept, back = TierFile.open(tmp_path / "kept", ALIGNMENT), memory(ALIGNMENT)
    ring.read(kept, 0, back).wait()
    assert torch.equal(page, back)
    kept.close()


@pytest.mark.skipif(find_spec("kvikio") is not None, reason="kvikio is installed")
def test_the_transport_says_why_it_is_this_one() -> None:
    for device_memory, why in ((False, "passes through RAM"), (True, "kvikio is not installed")):
        transport = open_transport(device_memory=device_memory)
        assert transport.name == "ring"
        assert why in transport.reason
        assert "O_DIRECT, 8 threads" in transport.reason
        transport.close()
    with pytest.raises(SlidepackError, match=r"RUN-SPEC-INVALID.*not installed"):
        open_transport(device_memory=True, wanted="kvikio")


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_a_librarys_words_for_an_error_are_the_systems_number(number: int) -> None:
    words = f"KvikIO failure at: posix_io.hpp:90: POSIX error on pwrite: {os.strerror(number)}"
    assert os.strerror(number_in(words)) == os.strerror(number)
    assert number_in(f"failed with errno: {number} (x)") == number


def test_an_error_without_a_number_is_one_of_the_drive() -> None:
    for words in ("POSIX error on pread: EOF", "errno: 99999", ""):
        assert number_in(words) == errno.EIO
