from pathlib import Path

import pytest
from support.stores import Stores, open_stores


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return open_stores(tmp_path)
