"""kvikio moves every byte of the card and of the host, and says what went wrong."""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.nvme.choose import open_transport
from slidepack.engine.nvme.files import ALIGNMENT, STRIPE_BYTES, TierFile
from slidepack.engine.nvme.transport import Transport

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
Memory = Callable[..., Tensor]
SIZE = 3 * STRIPE_BYTES + 5 * ALIGNMENT


@pytest.fixture
def kvikio() -> Iterator[Transport]:
    pytest.importorskip("kvikio")
    transport = open_transport(device_memory=True, wanted="kvikio", threads=4)
    yield transport
    transport.close()


@pytest.fixture(params=["cuda:0", "cpu"])
def place(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.mark.parametrize("parts", [1, 3])
def test_what_is_written_comes_back(
    parts: int, place: torch.device, kvikio: Transport, memory: Memory, folders: list[Path]
) -> None:
    source = memory(SIZE, seed=1)
    with closing(TierFile.create([folder / "unit" for folder in folders[:parts]], SIZE)) as file:
        kvikio.write(file, 0, _on(place, source)).wait()
        file.sync()
        back = _on(place, memory(SIZE))
        kvikio.read(file, 0, back).wait()
        at, part = STRIPE_BYTES + ALIGNMENT, memory(2 * ALIGNMENT, seed=2)
        kvikio.write(file, at, _on(place, part)).wait()
        again = _on(place, memory(4 * ALIGNMENT))
        kvikio.read(file, at - ALIGNMENT, again).wait()
    assert torch.equal(source, back.cpu())
    assert torch.equal(again[ALIGNMENT:-ALIGNMENT].cpu(), part)
    assert torch.equal(again[:ALIGNMENT].cpu(), source[at - ALIGNMENT : at])


def test_a_write_waits_for_the_work_that_fills_it(
    kvikio: Transport, memory: Memory, tmp_path: Path
) -> None:
    filled = _on(torch.device("cuda:0"), memory(SIZE))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with closing(TierFile.create(tmp_path / "unit", SIZE)) as file:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)
            filled.fill_(7)
            after = torch.cuda.Event()
            after.record(stream)
        kvikio.write(file, 0, filled, after).wait()
        back = memory(SIZE)
        kvikio.read(file, 0, back).wait()
    assert (back == 7).all()


def test_nothing_of_it_stays_in_the_page_cache(
    place: torch.device, kvikio: Transport, memory: Memory, tmp_path: Path
) -> None:
    info = pytest.importorskip("kvikio").get_page_cache_info
    with closing(TierFile.create(tmp_path / "unit", SIZE)) as file:
        kvikio.write(file, 0, _on(place, memory(SIZE, seed=4))).wait()
        kvikio.read(file, 0, _on(place, memory(SIZE))).wait()
        cached, pages = info(tmp_path / "unit")
    assert pages == SIZE // ALIGNMENT
    assert cached == 0


def test_a_read_of_nothing_is_a_failure(
    place: torch.device, kvikio: Transport, memory: Memory, tmp_path: Path
) -> None:
    with closing(TierFile.create(tmp_path / "unit", 4 * ALIGNMENT)) as file:
        os.truncate(tmp_path / "unit", ALIGNMENT)
        with pytest.raises(SlidepackError, match="DISK-FAILED"):
            kvikio.read(file, 0, _on(place, memory(4 * ALIGNMENT))).wait()


def test_a_refused_write_tells_the_systems_number(
    place: torch.device, kvikio: Transport, memory: Memory, tmp_path: Path
) -> None:
    source = _on(place, memory(4 * ALIGNMENT, seed=3))
    with closing(TierFile.create(tmp_path / "unit", 4 * ALIGNMENT)) as file:
        os.truncate(tmp_path / "unit", 0)
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (ALIGNMENT, old[1]))
        try:
            with pytest.raises(SlidepackError, match="DISK-") as caught:
                kvikio.write(file, 2 * ALIGNMENT, source[: 2 * ALIGNMENT]).wait()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
        # What failed ends all that follows.
        with pytest.raises(SlidepackError, match="DISK-"):
            kvikio.read(file, 0, source).wait()
    assert errno.errorcode[errno.EFBIG] in caught.value.report.why


def _on(place: torch.device, host: Tensor) -> Tensor:
    """Return a tensor of these bytes in the memory of a place, aligned."""
    if place.type == "cpu":
        return host
    room = torch.empty(host.numel() + ALIGNMENT, dtype=torch.uint8, device=place)
    start = -room.data_ptr() % ALIGNMENT
    filled = room[start : start + host.numel()].copy_(host)
    # kvikio does not wait for torch's streams.
    torch.cuda.synchronize()
    return filled
