"""Host memory of an exact size."""

import mmap

import pytest
import torch

from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.state import MomentFormat, StateFormat, TrainState, Unit

ALIGNMENT = 256


def test_a_slab_is_as_large_as_was_asked_and_used_up_exactly() -> None:
    sizes = [(1000, torch.float32), (1, torch.int8), (129, torch.bfloat16), (64, torch.float32)]
    total = sum(Slab.padded(count * dtype.itemsize) for count, dtype in sizes)
    assert total == 4096 + 256 + 512 + 256
    slab = Slab(total, pin=False)
    parts = [slab.take(count, dtype) for count, dtype in sizes]
    for part, (count, dtype) in zip(parts, sizes, strict=True):
        assert part.shape == (count,)
        assert part.dtype == dtype
        assert part.data_ptr() % ALIGNMENT == 0
        assert not part.any()
    starts = [part.data_ptr() - parts[0].data_ptr() for part in parts]
    assert starts == [0, 4096, 4352, 4864]
    assert not slab.pinned
    # A page is the least that the system maps; this slab is larger.
    assert total > mmap.PAGESIZE
    with pytest.raises(ValueError, match=f"the slab of {total} bytes is used up at {total}"):
        slab.take(1, torch.int8)


def test_the_last_tensor_needs_no_padding() -> None:
    slab = Slab(8192 + 1, pin=False)
    slab.take(8192, torch.int8)
    assert slab.take(1, torch.int8).numel() == 1


def test_a_tensor_that_does_not_fit_is_refused() -> None:
    slab = Slab(8192, pin=False)
    slab.take(8000, torch.int8)
    with pytest.raises(ValueError, match="used up at 8192"):
        slab.take(1, torch.float32)
    with pytest.raises(ValueError, match="used up at 0"):
        Slab(8192, pin=False).take(2049, torch.float32)


def test_parts_keep_their_own_values_and_versions() -> None:
    slab = Slab(8192, pin=False)
    one, other = slab.take(500, torch.float32), slab.take(500, torch.float32)
    one.fill_(1.0)
    before = other._version
    one.mul_(3.0)
    # Else autograd would refuse a layer's backward pass because another layer was updated.
    assert other._version == before
    assert not other.any()
    assert one.eq(3.0).all()


def test_memory_outlives_the_slab() -> None:
    slab = Slab(8192, pin=False)
    part = slab.take(100, torch.float32)
    slab.close()
    slab.close()
    del slab
    assert part.fill_(2.0).sum() == 200


def test_more_than_the_system_has_is_an_os_error() -> None:
    with pytest.raises(OSError, match="memory"):
        Slab(1 << 60, pin=False)


@pytest.mark.parametrize("moments", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("split", [False, True], ids=["fp32", "split"])
def test_a_state_takes_what_its_format_says(split: bool, moments: MomentFormat) -> None:
    form = StateFormat(split=split, moments=moments)
    units = [Unit("a", 5000, 4000), Unit("b", 1023, 1023), Unit("c", 2049, 0)]
    state = TrainState(units, form, pin=False)
    with pytest.raises(ValueError, match="used up"):
        state.slab.take(1, torch.int8)
    per_element = 4 + {"fp32": 8, "bf16": 4, "int8": 2}[moments]
    # Six tensors at most, padding and scales.
    assert form.unit_bytes(1 << 20) == pytest.approx(per_element << 20, rel=0.01)
    values = torch.randn(700, generator=torch.Generator().manual_seed(0))
    state.write(2, 100, values)
    assert torch.equal(state.read(2, 100, 700), values)
    assert not state.read(2, 0, 100).any()
    assert not state.read(2, 800, 1249).any()
    assert not state.read(1, 0, 1023).any()
    # Values in the dtype that the passes read are stored as they are.
    halves = values.bfloat16()
    state.write(0, 0, halves)
    assert torch.equal(state.weights(0)[:700].float(), halves.float())
