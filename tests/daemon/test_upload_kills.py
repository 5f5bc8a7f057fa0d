"""An upload outlives its daemon, whatever file the daemon was at when it was killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.upload_deaths import BODIES


@pytest.mark.full
def test_killed_at_any_file_nothing_that_was_sent_is_lost(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.upload_deaths", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    *deaths, last = map(json.loads, done.stdout.split("\n")[:-1])
    assert len(deaths) > 20
    assert all(death["died"] for death in deaths)
    assert not last["died"]
    for found in (*deaths, last):
        assert found["whole"], found
        assert found["rows"] == len(BODIES)
        assert len(found["folders"]) == 1
