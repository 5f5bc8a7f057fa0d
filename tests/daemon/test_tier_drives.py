"""The drives of training state on this machine, as the settings name them."""

from pathlib import Path

import pytest

from slidepack.daemon.drive_wears import DriveWears
from slidepack.daemon.settings import Settings, folders
from slidepack.daemon.tier_drives import TierDrives


def test_folders_are_those_of_the_settings_or_the_data_directory(tmp_path: Path) -> None:
    plain = TierDrives(tmp_path, Settings(), DriveWears()).now().room
    assert plain.folders == (str(tmp_path),)
    assert plain.linked
    named = Settings(nvme_folders=f"{tmp_path}/a, {tmp_path}/b")
    assert TierDrives(tmp_path, named, DriveWears()).now().room.folders == (
        f"{tmp_path}/a",
        f"{tmp_path}/b",
    )
    off = TierDrives(tmp_path, Settings(nvme="off"), DriveWears()).now().room
    assert off.refused


@pytest.mark.parametrize("text", ["relative", "/a, /a"])
def test_folders_that_cannot_work_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="nvme_folders"):
        folders(text)
    with pytest.raises(ValueError, match="nvme_folders"):
        Settings(nvme_folders=text)


def test_a_folder_under_two_names_is_named_twice(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    (tmp_path / "other name").symlink_to(tmp_path / "drive")
    for same in ("other name", "drive/", "other name/../drive"):
        with pytest.raises(ValueError, match="names a folder twice"):
            folders(f"{tmp_path}/drive, {tmp_path}/{same}")
    # What is not there yet may become anything.
    assert len(folders(f"{tmp_path}/drive, {tmp_path}/other name/within")) == 2


def test_rates_are_measured_once_and_kept(tmp_path: Path) -> None:
    drives = TierDrives(tmp_path, Settings(nvme="on"), DriveWears())
    assert not drives.now().room.measured
    measured = drives.measured().room
    assert measured.measured or measured.free_bytes < 10 * 10**9
    assert drives.measured().room.read_bytes_per_second == measured.read_bytes_per_second
    assert drives.now().room.measured == measured.measured
    assert not list(tmp_path.iterdir())
