"""Numbers come back from a real card past the copies that its copy engine is at work on."""

import pytest
import torch
from torch import Tensor

from slidepack.kernels import Readback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
COPY_BYTES = 1 << 30
"""Some 20 ms of the fastest link there is."""


def _values(count: int, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(count, dtype=torch.float64, device="cuda", generator=generator)


@pytest.mark.parametrize("count", [1, 2, 128, 1000])
def test_the_values_come_back(count: int) -> None:
    readback = Readback()
    for seed in range(20):
        values = _values(count, seed)
        values[-1] = torch.nan if seed % 2 else -torch.inf
        found = torch.tensor(readback.read(values), dtype=torch.float64)
        assert torch.equal(found.view(torch.int64), values.cpu().view(torch.int64))


def test_more_values_than_before_and_then_fewer() -> None:
    readback = Readback()
    for count in (3, 500, 3, 0, 129):
        values = _values(count, count)
        assert readback.read(values) == values.tolist()
        # Every other one: what is read need not lie side by side.
        assert readback.read(values[::2]) == values[::2].tolist()


def test_a_copy_to_the_host_is_not_waited_for() -> None:
    readback = Readback()
    readback.read(_values(2, 0))  # Compiles the kernel.
    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.zeros(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    values = _values(2, 1)
    # What is launched for the first time is loaded, which may wait for the device.
    expected = (values * 2.0).tolist()
    side, copied = torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        copied.record()
    assert readback.read(values * 2.0) == expected
    assert not copied.query(), "the copy was done before the numbers were there"
    copied.synchronize()
    assert bool(target.eq(1).all())
