"""Room on the disk is asked for before anything is written."""

import shutil
from pathlib import Path

import pytest

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.worker.room import require_room


def test_what_fits_above_the_floor_is_let_through(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    require_room(tmp_path, free // 4, free // 4, "the result")


@pytest.mark.parametrize(("needed", "floor"), [(1 << 60, 0), (1, 1 << 60)])
def test_what_does_not_is_a_coded_error_with_its_evidence(
    tmp_path: Path, needed: int, floor: int
) -> None:
    with pytest.raises(SlidepackError, match="no room for the checkpoint of step 4") as caught:
        require_room(tmp_path, needed, floor, "the checkpoint of step 4")
    report = caught.value.report
    assert report.code == "DISK-FULL"
    assert f"{needed / 2**20:,.1f} MiB needed" in report.why
    assert f"free at {tmp_path}" in report.why
    assert ("1,099,511,627,776.0 MiB are to stay free" in report.why) == bool(floor)
