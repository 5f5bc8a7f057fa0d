"""Small file systems that can really be full or read-only."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system of a few megabytes."""

    def __init__(self, mount: Path) -> None:
        """Wrap a mounted one."""
        self.mount = mount
        self._filler = mount / "filler"

    @property
    def free_bytes(self) -> int:
        """What can still be written."""
        stat = os.statvfs(self.mount)
        return stat.f_bavail * stat.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Write until only `leave` bytes are free."""
        with self._filler.open("ab") as file:
            try:
                while (room := self.free_bytes - leave) > 0:
                    file.write(b"x" * min(room, 1 << 20))
                    file.flush()
            except OSError:
                # Somebody else took the last block.
                return

    def free(self) -> None:
        """Make room again."""
        self._filler.unlink()

    def remount(self, how: str) -> None:
        """Make it `ro` or `rw`."""
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.mount)], check=True)


@contextmanager
def small_disk(mount: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a file system, or skip the test where this user may not."""
    mount.mkdir()
    options = f"size={megabytes}m,mode=700"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "slidepack-test", str(mount)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"a full disk needs a mount, which is not allowed here: {done.stderr.strip()}")
    try:
        yield SmallDisk(mount)
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=True)
