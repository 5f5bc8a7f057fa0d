from pathlib import Path

import pytest
from support.job_folders import Shop
from support.stores import Stores, open_stores


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return open_stores(tmp_path)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    # Nothing is there yet, so that later jobs are looked at only when they are named.
    made.retention.work()
    return made
