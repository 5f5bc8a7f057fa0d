from pathlib import Path

import pytest
from support.plan_shop import PlanShop, cards


@pytest.fixture
def shop(tmp_path: Path) -> PlanShop:
    """A queue that is empty, on a machine with two cards."""
    return PlanShop(tmp_path, cards(2))
