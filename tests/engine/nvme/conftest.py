from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from slidepack.engine.nvme.files import ALIGNMENT
from slidepack.engine.nvme.ring import RingTransport
from slidepack.engine.sliding.slab import Slab


@pytest.fixture
def ring() -> Iterator[RingTransport]:
    transport = RingTransport(threads=4)
    yield transport
    transport.close()


@pytest.fixture
def memory() -> Callable[..., Tensor]:
    """Make aligned bytes: random with a seed, else zero."""

    def make(num_bytes: int, seed: int | None = None) -> Tensor:
        taken = Slab(num_bytes, pin=False).take(num_bytes, torch.uint8, alignment=ALIGNMENT)
        if seed is not None:
            taken.random_(0, 256, generator=torch.Generator().manual_seed(seed))
        return taken

    return make


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / name for name in ("one", "two", "three")]
    for folder in made:
        folder.mkdir()
    return made
