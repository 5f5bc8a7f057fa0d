"""Measurements with state on a drive leave nothing there, also where one was killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slidepack.engine.bench_slide.drives import bench_tier
from slidepack.engine.bench_slide.options import SlideOptions
from slidepack.engine.bench_slide.plan import plan_slide
from slidepack.engine.bench_slide.shapes import shape_named
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.sliding.tier_store import TierSetup
from slidepack.engine.tier_folders import OURS


def _started(drive: Path) -> TierSetup:
    options = SlideOptions(
        shape="tiny",
        batch=4,
        seq=12,
        micro_tokens=24,
        steps=2,
        threads=1,
        device="cpu",
        moments="int8",
        nvme_folder=str(drive),
    )
    tier = bench_tier(options, plan_slide(options, shape_named("tiny"), None).full)
    assert tier is not None
    tier.transport.close()
    return tier


_KILLED = """
import os, signal, sys
from pathlib import Path
from slidepack.engine.tier_folders import bench_folder, take_folder
folder = bench_folder(Path(sys.argv[1]))
take_folder(folder)
(folder / "00000-000001.state").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_one_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    (mine := tmp_path / "bench-results").mkdir()
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = (tmp_path / OURS).iterdir()
    first = _started(tmp_path)
    assert not left.exists()
    second = _started(tmp_path)
    assert set((tmp_path / OURS).iterdir()) == {*first.folders, *second.folders}
    assert mine.exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SlidepackError, match="DISK-UNWRITABLE") as caught:
        _started(tmp_path / "away")
    assert str(tmp_path / "away") in caught.value.report.why
    assert not list(tmp_path.iterdir())
