from typing import Any

import pytest

from slidepack.daemon.probe.wsl import read_wsl


@pytest.mark.parametrize(
    ("release", "interop", "version"),
    [
        ("4.4.0-19041-Microsoft", True, "wsl1"),
        ("5.15.167.4-microsoft-standard-WSL2", True, "wsl2"),
        ("6.6.36-home-built", True, "wsl2"),
        ("6.8.0-60-generic", False, "no"),
        ("6.8.0-1021-azure", False, "no"),
    ],
)
def test_version(tree: Any, release: str, interop: Any, version: str) -> None:
    tree.write({"proc/sys/kernel/osrelease": f"{release}\n"})
    if interop:
        tree.write({"proc/sys/fs/binfmt_misc/WSLInterop": "enabled\n"})
    wsl = read_wsl(tree.root)
    assert (wsl.version, wsl.kernel) == (version, release)
