"""The drives of training state, as the settings name them; keeps what is slow to ask."""

import threading
from pathlib import Path
from typing import Final

from slidepack.daemon.drive_wears import DriveWears
from slidepack.daemon.probe.disk_speed import DiskSpeed, measure_disk
from slidepack.daemon.probe.problem import ProbeFailure
from slidepack.daemon.probe.tier import Tier, read_tier
from slidepack.daemon.settings import Settings, folders

__all__ = ["TierDrives"]

_ROOT: Final = Path("/")


class TierDrives:
    """Answers at once; the drives' rates are measured when they are first asked for."""

    def __init__(self, data_dir: Path, settings: Settings, wears: DriveWears) -> None:
        """Bind the settings, and who asks drives for their wear; nothing is looked at yet."""
        self._use = settings.nvme
        self._data_dir = data_dir
        self._folders = folders(settings.nvme_folders) or (data_dir,)
        self._speeds: dict[Path, DiskSpeed] = {}
        self._wears = wears
        self._lock = threading.Lock()
        self._measuring = threading.Lock()

    def now(self) -> Tier:
        """Return the drives as they are now, with rates where they were measured.

        Raises:
            OSError: the mount table cannot be read, or a drive does not answer.
        """
        with self._lock:
            speeds = dict(self._speeds)
        return read_tier(
            _ROOT,
            self._data_dir,
            self._folders,
            self._use,
            wear_of=self._wears.of,
            speeds=speeds,
        )

    def measured(self) -> Tier:
        """Return the same with measured rates; the first call takes seconds.

        A folder that cannot be measured keeps the rates of a common drive.

        Raises:
            OSError: as `now` does.
        """
        with self._measuring:
            for folder in self._folders:
                if folder in self._speeds:
                    continue
                try:
                    speed = measure_disk(folder)
                except ProbeFailure:
                    # The run itself says what is wrong with it, with the file and the fix.
                    continue
                if isinstance(speed, DiskSpeed):
                    with self._lock:
                        self._speeds[folder] = speed
        return self.now()
