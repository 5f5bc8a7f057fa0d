from pathlib import Path

import pytest
from support.sweep_shop import SweepShop


@pytest.fixture
def sweep_shop(tmp_path: Path) -> SweepShop:
    return SweepShop(tmp_path)
