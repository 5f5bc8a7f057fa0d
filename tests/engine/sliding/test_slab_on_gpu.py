"""Host memory that a real card's driver has pinned."""

import gc

import pytest
import torch

from slidepack.engine.sliding.slab import Slab, pin_pages

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
SIZE = 4 << 20


def test_a_slab_that_nobody_closed_leaves_its_addresses_free() -> None:
    addresses = set()
    for _ in range(20):
        # The system hands out the same addresses again.
        slab = Slab(SIZE, pin=True)
        assert slab.pinned
        part = slab.take(100, torch.float32)
        addresses.add(part.data_ptr())
        torch.ones(100, device="cuda").add_(part.to("cuda", non_blocking=True)).sum().item()
        del slab, part
        gc.collect()
    assert len(addresses) < 20


def test_a_closed_slab_can_be_pinned_again() -> None:
    slab = Slab(SIZE, pin=True)
    part = slab.take(SIZE, torch.uint8)
    assert part.is_pinned()
    slab.close()
    slab.close()
    assert not slab.pinned
    assert not part.is_pinned()
    assert pin_pages(part)
    torch.cuda.cudart().cudaHostUnregister(part.data_ptr())


def test_a_refusal_is_not_blamed_on_the_next_kernel() -> None:
    slab = Slab(SIZE, pin=True)
    part = slab.take(SIZE, torch.uint8)
    assert not pin_pages(part)
    assert torch.ones(10, device="cuda").sum().item() == 10
    slab.close()
