from collections.abc import Iterator
from pathlib import Path

import pytest
from support.private_bus import FakeLogind, PrivateBus


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[PrivateBus]:
    """A bus of the test's own, running."""
    private = PrivateBus(tmp_path)
    private.start()
    yield private
    private.stop()


@pytest.fixture
def fake_logind(bus: PrivateBus) -> Iterator[FakeLogind]:
    """A login manager on that bus."""
    fake = FakeLogind(bus.address)
    yield fake
    fake.close()
